"""CTranslate2 with the weights of one checkpoint, as a translator from texts to texts."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import psutil

from hmc.artifact.checkpoint.checkpoint import Checkpoint
from hmc.artifact.tokenizer.tokenizer import open_tokenizer
from hmc.serving import DecodeOptions, Translation
from hmc.serving.runtime.threads import threads_here

QUANTISATIONS = {"int8": "int8", "float32": None}
"""Compute type of CTranslate2 → how its weights are stored."""


def ctranslate2_installed() -> bool:
    """Whether CTranslate2 can be imported here. It is not imported by this."""
    return importlib.util.find_spec("ctranslate2") is not None


def ctranslate2_version() -> str:
    """The version of CTranslate2. Raises ImportError where it is not installed."""
    import ctranslate2  # type: ignore[import-untyped]

    return str(ctranslate2.__version__)


class CTranslate2:
    """One model of CTranslate2 on the CPU. Its method has the form of `Translator.translate`."""

    def __init__(
        self, checkpoint: Checkpoint, model: Path, compute_type: str, *, workers: int, threads: int
    ) -> None:  # fmt: skip
        """checkpoint: with all its heads. model: folder of CTranslate2's files, written if it is not there.
        compute_type: a key of QUANTISATIONS. workers: batches at a time, each on that many threads."""
        import ctranslate2

        from hmc.benchmark.peers.ctranslate2_model import write_ctranslate2

        arch = checkpoint.architecture
        self._pieces = [f"w{number}" for number in range(max(arch.vocab_size, arch.source_size))]
        self._pieces[arch.eos_id] = "</s>"
        self._ids = {piece: number for number, piece in enumerate(self._pieces)}
        if not model.is_dir():
            write_ctranslate2(checkpoint, self._pieces, model, QUANTISATIONS[compute_type])
        self._tokenizer, self._eos, self._workers = open_tokenizer(checkpoint.tokenizer), arch.eos_id, workers
        self._longest = arch.max_positions
        self._translator = ctranslate2.Translator(
            str(model), device="cpu", compute_type=compute_type, inter_threads=workers, intra_threads=threads
        )

    def translate(self, texts: Sequence[str], options: DecodeOptions | None = None) -> list[Translation]:
        """Returns the best translation of each text, in order. Of `options` only the beam is heeded.

        EOS counts in the length by which hypotheses are ranked, as it does in HMC. The work is split evenly among the
        workers.
        """
        beam = (options or DecodeOptions()).beam_size
        sources = [[*self._tokenizer.encode(text)[: self._longest - 1], self._eos] for text in texts]
        results = self._translator.translate_batch(
            [[self._pieces[token] for token in source] for source in sources], beam_size=beam,
            max_decoding_length=min(self._longest, 2 * max(map(len, sources)) + 10),
            max_batch_size=-(-len(sources) // self._workers), return_end_token=True, return_scores=True,
        )  # fmt: skip
        found = []
        for source, result in zip(sources, results, strict=True):
            ids = [self._ids[piece] for piece in result.hypotheses[0]]
            found.append(Translation(self._tokenizer.decode(ids), result.scores[0], len(source), len(ids)))
        return found


def ctranslate2_systems(checkpoint: Checkpoint, out: Path) -> dict[str, CTranslate2]:
    """CTranslate2 at each compute type and, where there are several cores, at both ways to use them.

    One worker with a thread for each core is its default; the other way is a worker with one thread for each core.
    out: folder for its files.
    """
    cores = threads_here(0) or psutil.cpu_count(logical=False) or 1
    ways = {"threads": (1, cores), "workers": (cores, 1)} if cores > 1 else {"thread": (1, 1)}
    return {
        f"ct2-{compute_type}, {cores} {way}": CTranslate2(
            checkpoint, out / f"ct2-{compute_type}", compute_type, workers=workers, threads=threads
        )
        for compute_type in QUANTISATIONS
        for way, (workers, threads) in ways.items()
    }
