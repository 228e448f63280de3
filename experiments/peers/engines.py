"""CTranslate2, Transformers and Optimum with the weights of one checkpoint, as functions from source to target ids."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from experiments.support.worker import Worker
from hmc.artifact.bundle.shortlist import Lexicon
from hmc.artifact.checkpoint.checkpoint import Checkpoint
from hmc.artifact.marian.writer import export_marian
from hmc.artifact.model.architecture import Architecture
from hmc.benchmark.peers.engines import exported_ids

Ids = list[list[int]]
Run = Callable[[Ids, int], Ids]
"""Sources (ids with EOS) and beam size → target ids, each list as long as was asked for."""
PEERS = ("ctranslate2", "transformers", "optimum")
CORES = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
"""Number of threads for one batch, or of workers with one thread each, in every engine."""
CT2_DEFAULTS = f"{CORES} threads"
CT2_THREADS = {CT2_DEFAULTS: (1, CORES), f"{CORES} workers": (CORES, 1)}
"""Name → (inter_threads, intra_threads) of CTranslate2. For each batch and beam, the faster of both is compared with
all levels. The first is CTranslate2's default on few cores; it is also compared with HMC's defaults."""


def ctranslate2_peers(
    checkpoint: Checkpoint, out: Path, target: int | None, lexicon: Lexicon | None = None
) -> dict[str, Run]:
    """CTranslate2 in this process, at each precision and number of threads; with a lexicon also with a vocabulary map
    made of it. target: tokens to write, None: as many as the model wants."""
    from hmc.benchmark.peers.ctranslate2_model import write_ctranslate2

    arch = checkpoint.architecture
    pieces = [f"w{i}" for i in range(max(arch.vocab_size, arch.source_size))]
    pieces[arch.eos_id] = "</s>"
    for name, quantization in (("ct2-int8", "int8"), ("ct2-fp32", None)):
        if not (out / name).is_dir():
            write_ctranslate2(checkpoint, pieces, out / name, quantization)
        if lexicon:
            _write_vocabulary_map(lexicon, pieces, out / name)
    systems = {}
    for threads, pair in CT2_THREADS.items():
        systems[f"ct2 int8 {threads}"] = _ctranslate2(out / "ct2-int8", pieces, target, pair, "int8")
        if lexicon:
            systems[f"ct2 int8+vmap {threads}"] = _ctranslate2(
                out / "ct2-int8", pieces, target, pair, "int8", vmap=True
            )
        systems[f"ct2 fp32 {threads}"] = _ctranslate2(out / "ct2-fp32", pieces, target, pair, "float32")
    return systems


def _write_vocabulary_map(lexicon: Lexicon, pieces: Sequence[str], model: Path) -> None:
    """Adds the lexicon to a model directory, in CTranslate2's form: a line of candidates for each source token, which
    is its own candidate too where there is one vocabulary, and one for those that are always there."""
    lines = ["\t" + " ".join(pieces[t] for t in lexicon.always)]
    for token, piece in enumerate(pieces[: lexicon.source_size]):
        if token != lexicon.pad_id:
            found = lexicon.targets[lexicon.starts[token] : lexicon.starts[token + 1]].tolist()
            own = [token] if lexicon.target_size is None else []
            lines.append(f"{piece}\t" + " ".join(pieces[t] for t in dict.fromkeys([*own, *found])))
    (model / "vmap.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def ctranslate2_on_cuda(checkpoint: Checkpoint, out: Path, target: int) -> dict[str, Run]:
    """CTranslate2 on the GPU, at fp16 and with int8 weights; empty if it is not installed or sees no GPU."""
    try:
        import ctranslate2  # type: ignore[import-untyped]
    except ImportError:
        return {}
    if not ctranslate2.get_cuda_device_count():
        return {}
    from hmc.benchmark.peers.ctranslate2_model import write_ctranslate2

    arch = checkpoint.architecture
    pieces = [f"w{i}" for i in range(max(arch.vocab_size, arch.source_size))]
    pieces[arch.eos_id] = "</s>"
    if not (out / "ct2-fp32").is_dir():
        write_ctranslate2(checkpoint, pieces, out / "ct2-fp32", None)
    return {
        f"ct2 {name}": _ctranslate2(out / "ct2-fp32", pieces, target, (1, 1), compute, device="cuda")
        for name, compute in (("fp16", "float16"), ("int8", "int8_float16"))
    }


def _ctranslate2(
    model: Path, pieces: Sequence[str], target: int | None, threads: tuple[int, int], compute: str, *,
    vmap: bool = False, device: str = "cpu",
) -> Run:  # fmt: skip
    import ctranslate2

    translator = ctranslate2.Translator(
        str(model), device=device, inter_threads=threads[0], intra_threads=threads[1], compute_type=compute
    )
    numbers = {piece: number for number, piece in enumerate(pieces)}

    def run(sources: Ids, beam: int) -> Ids:
        tokens = [[pieces[i] for i in ids] for ids in sources]
        results = translator.translate_batch(
            tokens, beam_size=beam, min_decoding_length=target or 0,
            max_decoding_length=target or 2 * max(map(len, tokens)) + 10,
            max_batch_size=-(-len(tokens) // threads[0]), use_vmap=vmap, return_end_token=target is None,
        )  # fmt: skip
        return [[numbers[piece] for piece in r.hypotheses[0]] for r in results]

    return run


def generate_peers(
    checkpoint: Checkpoint, out: Path, target: int, libraries: Sequence[str], pythons: Mapping[str, str]
) -> dict[str, Run]:
    """Transformers and Optimum, fp32, each in a process of its own.

    pythons: library → interpreter to run it with, where it is not this one.
    """
    arch = checkpoint.architecture
    if libraries and not (out / "marian").is_dir():
        export_marian(checkpoint, out / "marian", masked=True)
    return {
        f"{library} fp32": generate(library, out / "marian", arch, target, pythons.get(library, sys.executable))
        for library in libraries
    }


def generate(
    library: str, model: Path, arch: Architecture, target: int, python: str = sys.executable, precision: str = "fp32"
) -> Run:
    """`generate` of a library on an exported checkpoint, in a process of its own; fp16 and bf16 are on CUDA."""
    worker = Worker("experiments.peers.generate_worker", [library, str(model), precision], python=python)
    print(f"{library}: {worker.about}")
    to_new = exported_ids(arch)
    to_old = {new: old for old, new in enumerate(to_new)}

    def run(sources: Ids, beam: int) -> Ids:
        moved = [[to_new[i] for i in ids] for ids in sources]
        request = {"sources": moved, "beam": beam, "target": target, "pad": to_new[arch.pad_id]}
        return [[to_old[i] for i in ids] for ids in worker.ask(request)]

    return run
