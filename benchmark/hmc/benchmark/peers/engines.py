"""The other engines: what each needs, how it gets the weights, and its settings. From text to text, on the CPU.

`load` of an engine runs in the process of that engine alone, so only there its library is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hmc.artifact.checkpoint.checkpoint import Checkpoint, load_checkpoint
from hmc.artifact.marian.writer import export_marian
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.tokenizer.tokenizer import Tokenizer, open_tokenizer
from hmc.engine.runtime.processor import instructions
from hmc.engine.runtime.threads import cores
from hmc.serving.requests.results import Translation

Translate = Callable[[Sequence[str], int], list[Translation]]
"""Texts that are not blank, and the beam → translations."""
BF16 = ("amx_bf16", "avx512_bf16")
"""Flags of processors on which products in bf16 are not slower than in fp32."""


@dataclass(frozen=True)
class PeerEngine:
    """Another engine."""

    title: str
    package: str
    """The distribution whose version is reported."""
    modules: tuple[str, ...]
    install: str
    """What installs the modules."""
    prepare: Callable[[Checkpoint, Path], None]
    """Writes the weights of a checkpoint into a folder, in the engine's form."""
    load: Callable[[Path, Path], dict[str, Translate]]
    """(that folder, the checkpoint's) → a function for each setting worth trying."""


def piece_of(token: int) -> str:
    """The name that a token has in a model of CTranslate2."""
    return f"w{token}"


def exported_ids(arch: Architecture) -> list[int]:
    """Token id in an exported MarianMT directory, by id in the checkpoint: pad moves to the end."""
    if arch.source_vocab_size is not None:
        return list(range(max(arch.vocab_size, arch.source_vocab_size)))
    ids = list(range(arch.vocab_size - 1))
    ids.insert(arch.pad_id, arch.vocab_size - 1)
    return ids


class _Text:
    """Text to ids and back, as HMC has them."""

    def __init__(self, checkpoint: Path) -> None:
        loaded = load_checkpoint(checkpoint)
        self.arch = loaded.architecture
        self._tokenizer: Tokenizer = open_tokenizer(loaded.tokenizer)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids with EOS. Text for which the model has no positions is cut, as in HMC."""
        room = self.arch.max_positions - 1
        return [[*self._tokenizer.encode(text)[:room], self.arch.eos_id] for text in texts]

    def longest(self, sources: Sequence[Sequence[int]]) -> int:
        """Largest number of tokens of a translation, by HMC's default."""
        return min(self.arch.max_positions - 1, 2 * max(map(len, sources)) + 10)

    def translation(self, source: Sequence[int], target: Sequence[int]) -> Translation:
        """target: ids, with or without EOS."""
        written = [token for token in target if token not in (self.arch.eos_id, self.arch.pad_id)]
        return Translation(self._tokenizer.decode(written), 0.0, len(source), len(written) + 1)


def divisions() -> list[tuple[int, int]]:
    """(batches at a time, threads of each) worth trying: all cores for one batch, or a batch on each."""
    return sorted({(1, cores()), (cores(), 1)})


def prepare_ctranslate2(checkpoint: Checkpoint, out: Path) -> None:
    """In fp32; CTranslate2 quantises when it loads."""
    from hmc.benchmark.peers.ctranslate2_model import write_ctranslate2

    arch = checkpoint.architecture
    pieces = list(map(piece_of, range(max(arch.vocab_size, arch.source_size))))
    write_ctranslate2(checkpoint, pieces, out, None)


def load_ctranslate2(model: Path, checkpoint: Path) -> dict[str, Translate]:
    """int8 and fp32."""
    import ctranslate2  # type: ignore[import-untyped]

    text = _Text(checkpoint)

    def setting(compute: str, workers: int, threads: int) -> Translate:
        engine: Any = ctranslate2.Translator(
            str(model), device="cpu", inter_threads=workers, intra_threads=threads, compute_type=compute
        )

        def translate(texts: Sequence[str], beam: int) -> list[Translation]:
            sources = text.encode(texts)
            results = engine.translate_batch(
                [list(map(piece_of, ids)) for ids in sources],
                beam_size=beam,
                max_batch_size=-(-len(texts) // workers),
                max_decoding_length=text.longest(sources),
            )
            translations = []
            for source, result in zip(sources, results, strict=True):
                ids = [int(piece[1:]) for piece in result.hypotheses[0]]
                translations.append(text.translation(source, ids))
            return translations

        return translate

    settings = {}
    for name, compute in (("int8", "int8"), ("fp32", "float32")):
        for workers, threads in divisions():
            settings[f"{name}, {spelled(workers, threads)}"] = setting(compute, workers, threads)
    return settings


def spelled(workers: int, threads: int) -> str:
    """A division of the cores as tables name it: batches at a time, and the threads of each."""
    return f"{workers} × {threads} thread{'s' if threads > 1 else ''}"


def prepare_marian(checkpoint: Checkpoint, out: Path) -> None:
    """As Transformers reads it."""
    export_marian(checkpoint, out, masked=True)


def load_transformers(model: Path, checkpoint: Path) -> dict[str, Translate]:
    """`generate` in fp32, and in bf16 where the processor has products for it."""
    import torch
    from transformers import MarianMTModel

    _quiet()
    types = [("fp32", torch.float32)] + [("bf16", torch.bfloat16)] * any(flag in instructions() for flag in BF16)
    text = _Text(checkpoint)
    settings = dict[str, Translate]()
    for name, dtype in types:
        loaded: Any = MarianMTModel.from_pretrained(model, dtype=dtype)
        for threads in sorted({1, cores()}):
            settings[f"{name}, {spelled(1, threads)}"] = _generate(loaded.eval(), text, threads)
    return settings


def load_optimum(model: Path, checkpoint: Path) -> dict[str, Translate]:
    """`generate` on ONNX Runtime, in fp32 and on its own choice of threads."""
    from optimum.onnxruntime import ORTModelForSeq2SeqLM  # type: ignore[import-not-found,unused-ignore]

    _quiet()
    loaded = ORTModelForSeq2SeqLM.from_pretrained(model, export=True)
    return {"fp32": _generate(loaded, _Text(checkpoint), cores())}


def _quiet() -> None:
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def _generate(model: Any, text: _Text, threads: int) -> Translate:
    import torch
    from torch.nn.utils.rnn import pad_sequence

    to_new = torch.tensor(exported_ids(text.arch))
    to_old = to_new.argsort()
    pad = int(to_new[text.arch.pad_id])

    def translate(texts: Sequence[str], beam: int) -> list[Translation]:
        torch.set_num_threads(threads)
        sources = text.encode(texts)
        rows = [to_new[torch.tensor(source)] for source in sources]
        ids = pad_sequence(rows, batch_first=True, padding_value=pad)
        with torch.inference_mode():
            written = model.generate(
                input_ids=ids, attention_mask=ids.ne(pad).long(), num_beams=beam, do_sample=False,
                length_penalty=1.0, max_new_tokens=text.longest(sources),
            )  # fmt: skip
        targets = to_old[written[:, 1:]].tolist()
        return list(map(text.translation, sources, targets))

    return translate


ENGINES = {
    "ctranslate2": PeerEngine(
        "CTranslate2", "ctranslate2", ("ctranslate2",), "ctranslate2", prepare_ctranslate2, load_ctranslate2
    ),
    "transformers": PeerEngine(
        "Transformers", "transformers", ("transformers", "torch"), "transformers torch", prepare_marian,
        load_transformers,
    ),
    "optimum": PeerEngine(
        "Optimum", "optimum", ("optimum", "transformers", "torch"), "'optimum[onnxruntime]'", prepare_marian,
        load_optimum,
    ),
}  # fmt: skip
"""Name on the command line → engine."""
