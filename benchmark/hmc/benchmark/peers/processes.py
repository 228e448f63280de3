"""Engines that translate text to text, each in a process of its own, and the time that each takes."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

Texts = Sequence[str]
Translate = Callable[[Texts, int], list[str]]
"""Texts and the beam → translations."""

_translate: Translate | None = None
"""The engine of this process."""


class Engine:
    """An engine in a process of its own, so that its threads and memory disturb no other one. Use it in a `with` block,
    which begins when the engine is loaded."""

    def __init__(self, load: Callable[..., Translate], *arguments: object) -> None:
        """load: a function of a module, called with the arguments in the new process."""
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, context, partial(_begin, load, *arguments))

    def start(self, texts: Texts, beam: int) -> list[str]:
        """Loads the engine, and translates texts without timing them."""
        return self._pool.submit(_run, texts, beam).result()[1]

    def seconds(self, texts: Texts, beam: int) -> float:
        """The seconds in which the engine translates the texts in one request."""
        return self._pool.submit(_run, texts, beam).result()[0]

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()


def _begin(load: Callable[..., Translate], *arguments: object) -> None:
    global _translate  # noqa: PLW0603 - it is what this process is for
    _translate = load(*arguments)


def _run(texts: Texts, beam: int) -> tuple[float, list[str]]:
    assert _translate is not None
    began = time.perf_counter()
    found = _translate(texts, beam)
    return time.perf_counter() - began, found


def load_level(bundle: Path, level: str, workers: int) -> Translate:
    """A level of HMC on the CPU. workers: 1 takes a thread for each core; more take one each."""
    from hmc.serving import DecodeOptions, Translator

    translator = Translator(bundle, level, device="cpu", workers=workers)

    def translate(texts: Texts, beam: int) -> list[str]:
        return [t.text for t in translator.translate(texts, DecodeOptions(beam_size=beam), segmentation="none")]

    return translate


def load_ctranslate2(model: Path, checkpoint: Path, workers: int, threads: int) -> Translate:
    """CTranslate2 at int8 on the CPU. model: a folder that `write_ctranslate2` wrote; checkpoint: what it was made of.
    workers, threads: batches at a time, and threads of each."""
    import ctranslate2  # type: ignore[import-untyped]

    from hmc.artifact.checkpoint.checkpoint import load_checkpoint
    from hmc.artifact.tokenizer.tokenizer import open_tokenizer

    loaded = load_checkpoint(checkpoint)
    tokenizer, arch = open_tokenizer(loaded.tokenizer), loaded.architecture
    engine: Any = ctranslate2.Translator(
        str(model), device="cpu", inter_threads=workers, intra_threads=threads, compute_type="int8"
    )

    def translate(texts: Texts, beam: int) -> list[str]:
        sources = [[*tokenizer.encode(text), arch.eos_id] for text in texts]
        results = engine.translate_batch(
            [[piece_of(i) for i in ids] for ids in sources],
            beam_size=beam,
            max_batch_size=-(-len(texts) // workers),
            max_decoding_length=min(arch.max_positions, 2 * max(map(len, sources)) + 10),
        )
        return [tokenizer.decode([int(piece[1:]) for piece in result.hypotheses[0]]) for result in results]

    return translate


def piece_of(token: int) -> str:
    """The name that a token has in a model of CTranslate2."""
    return f"w{token}"
