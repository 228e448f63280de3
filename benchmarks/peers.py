"""The other engines of base_size.py, all on the weights of one checkpoint: CTranslate2, Transformers, Optimum."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil
from workers import Worker

from hmc.artifact.architecture import Architecture
from hmc.artifact.checkpoint import Checkpoint
from hmc.artifact.marian.writer import export_marian
from hmc.artifact.shortlist import Lexicon

Ids = list[list[int]]
Run = Callable[[Ids, int], Ids]
"""Sources (ids with EOS) and beam size → the ids written, each list as long as was asked for."""
PEERS = ("ctranslate2", "transformers", "optimum")
CORES = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
"""Threads of a batch that all share, or workers of one thread, in every engine."""
CT2_DEFAULTS = f"{CORES} threads"
CT2_THREADS = {CT2_DEFAULTS: (1, CORES), f"{CORES} workers": (CORES, 1)}
"""(inter_threads, intra_threads) tried for CTranslate2. The faster one of each setting is compared with everything; the
first, which on few cores is what it does unless told otherwise, with HMC's own defaults too."""


def ctranslate2_peers(
    checkpoint: Checkpoint, out: Path, target: int | None, lexicon: Lexicon | None = None
) -> dict[str, Run]:
    """CTranslate2 in this process, at each precision and number of threads; with a lexicon also with a vocabulary map
    made of it. target: tokens to write, None: as many as the model wants."""
    from ctranslate2_model import write_ctranslate2, write_vocabulary_map

    arch = checkpoint.architecture
    pieces = [f"w{i}" for i in range(max(arch.vocab_size, arch.source_size))]
    pieces[arch.eos_id] = "</s>"
    for name, quantization in (("ct2-int8", "int8"), ("ct2-fp32", None)):
        if not (out / name).is_dir():
            write_ctranslate2(checkpoint, pieces, out / name, quantization)
        if lexicon:
            write_vocabulary_map(lexicon, pieces, out / name)
    systems = {}
    for threads, pair in CT2_THREADS.items():
        systems[f"ct2 int8 {threads}"] = _ctranslate2(out / "ct2-int8", pieces, target, pair, "int8")
        if lexicon:
            systems[f"ct2 int8+vmap {threads}"] = _ctranslate2(
                out / "ct2-int8", pieces, target, pair, "int8", vmap=True
            )
        systems[f"ct2 fp32 {threads}"] = _ctranslate2(out / "ct2-fp32", pieces, target, pair, "float32")
    return systems


def _ctranslate2(
    model: Path, pieces: Sequence[str], target: int | None, threads: tuple[int, int], compute: str, *,
    vmap: bool = False,
) -> Run:  # fmt: skip
    import ctranslate2  # type: ignore[import-untyped]

    translator = ctranslate2.Translator(
        str(model), device="cpu", inter_threads=threads[0], intra_threads=threads[1], compute_type=compute
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
    worker = Worker("generate_worker.py", [library, str(model), precision], python=python)
    print(f"{library}: {worker.about}")
    to_new = exported_ids(arch)
    to_old = {new: old for old, new in enumerate(to_new)}

    def run(sources: Ids, beam: int) -> Ids:
        moved = [[to_new[i] for i in ids] for ids in sources]
        request = {"sources": moved, "beam": beam, "target": target, "pad": to_new[arch.pad_id]}
        return [[to_old[i] for i in ids] for ids in worker.ask(request)]

    return run


def exported_ids(arch: Architecture) -> list[int]:
    """Token id in an exported MarianMT directory, by id in the checkpoint: pad moves to the end."""
    if arch.source_vocab_size is not None:
        return list(range(max(arch.vocab_size, arch.source_vocab_size)))
    return [arch.vocab_size - 1 if i == arch.pad_id else i - (i > arch.pad_id) for i in range(arch.vocab_size)]
