"""Where shards are translated: in this process, or as tasks of Ray. The one that runs changes no byte of the output,
because all translate a shard by the same function."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from hmc.artifact.errors import InternalServiceError, InvalidRequestError
from hmc.engine.requests.caller import Priority
from hmc.pipelines.bulk.corpus import CorpusLine
from hmc.pipelines.bulk.settings import BulkSettings
from hmc.pipelines.window import in_turn, longest_first, worker_rows
from hmc.serving.requests.options import Target
from hmc.serving.requests.results import Translation
from hmc.serving.text.languages import with_code
from hmc.serving.translator import Translator

DIGITS = 4
"""Decimals of a score. A float of 32 bits has no more that all processors and batches agree on."""


@dataclass(frozen=True)
class LineResult:
    """What became of one line."""

    text: str | None
    """The source. None if it cannot be read."""
    translations: tuple[str, ...] = ()
    """Best first; empty if there is none."""
    scores: tuple[float, ...] = ()
    """log P / length ^ length_penalty (natural logarithm) of each translation."""
    problem: str | None = None
    """Why there is no translation."""
    cut: bool = False
    """The source had more tokens than the model has positions, and its end was cut off."""
    unfinished: bool = False
    """The translation reached its greatest length before it ended."""


Waiting = list[Future[Translation] | str]
"""For each line its translation to come, or why there will be none."""


def submit(translator: Translator, lines: Sequence[CorpusLine], settings: BulkSettings) -> Waiting:
    """Queues the lines, the longest first."""
    return longest_first(lines, lambda line: line.text or "", lambda line: _submit_one(translator, line, settings))


def collect(
    translator: Translator, lines: Sequence[CorpusLine], waiting: Waiting, settings: BulkSettings
) -> list[LineResult]:
    """Waits for the translations of the lines.

    Raises InternalServiceError if the level fails at every line of the shard: it is then broken, not the lines.
    """
    found = list[LineResult]()
    broken = list[InternalServiceError]()
    for line, answer in zip(lines, waiting, strict=True):
        try:
            found.append(_found(line, answer))
        except InternalServiceError:  # this text, or one that ran beside it
            try:
                found.append(_found(line, _submit_one(translator, line, settings)))
            except InternalServiceError as error:
                broken.append(error)
                found.append(LineResult(line.text, problem=str(error)))
    if broken and not any(one.translations and one.translations[0] for one in found):
        raise broken[0]
    return found


def check_request(translator: Translator, settings: BulkSettings) -> None:
    """Raises InvalidRequestError and FailedPreconditionError for options that fail at this level for every line."""
    text = with_code("a", settings.code)
    translator.submit(
        text, settings.options, Target(settings.target_prefix), block=True, priority=Priority.BULK
    ).cancel()


def translate_shard(translator: Translator, lines: Sequence[CorpusLine], settings: BulkSettings) -> list[LineResult]:
    """Translates the lines of a shard. Raises as `collect`."""
    return collect(translator, lines, submit(translator, lines, settings), settings)


def _submit_one(translator: Translator, line: CorpusLine, settings: BulkSettings) -> Future[Translation] | str:
    if line.text is None:
        return line.problem or ""
    try:
        coded = with_code(line.text, settings.code)
        return translator.submit(
            coded, settings.options, Target(settings.target_prefix), block=True, priority=Priority.BULK, line=True
        )
    except InvalidRequestError as error:
        return str(error)


def _found(line: CorpusLine, answer: Future[Translation] | str) -> LineResult:
    if isinstance(answer, str):
        return LineResult(line.text, problem=answer)
    translation = answer.result()
    return LineResult(
        line.text,
        tuple(hypothesis.text for hypothesis in translation.hypotheses),
        tuple(round(hypothesis.score, DIGITS) for hypothesis in translation.hypotheses),
        cut=translation.source_truncated,
        unfinished=translation.hit_max_length,
    )


EngineName = Literal["local", "ray"]
Shard = tuple[int, list[CorpusLine]]
Done = tuple[int, list[LineResult]]


@dataclass(frozen=True)
class BulkLevel:
    """The level of a bundle that translates, and its device."""

    bundle: Path
    name: str
    device: str = "auto"
    threads: int = 0
    """Of each worker. 0: one with several workers or on Ray, else one for each physical core."""
    workers: int = 1
    """Batches that run at once: in this process, or as tasks of Ray."""


class BulkEngine(Protocol):
    """Translates shards."""

    def translate(self, shards: Iterator[Shard]) -> Iterator[Done]:
        """Yields each shard with the results of its lines, in any order. Reads few shards ahead."""

    def close(self) -> None:
        """Ends the processes that it has started."""


class LocalEngine:
    """Translates in this process."""

    def __init__(self, level: BulkLevel, settings: BulkSettings) -> None:
        """Loads the level. Raises as `Translator` and `check_request`."""
        self._settings = settings
        self._translator = Translator(
            level.bundle, level.name, device=level.device, threads=level.threads, workers=level.workers,
            max_rows=worker_rows(settings.options.beam_size) * level.workers,
        )  # fmt: skip
        try:
            check_request(self._translator, settings)
        except BaseException:
            self.close()
            raise

    def translate(self, shards: Iterator[Shard]) -> Iterator[Done]:
        """See `BulkEngine`."""
        submitted = in_turn(shards, lambda shard: submit(self._translator, shard[1], self._settings))
        for (number, lines), waiting in submitted:
            yield number, collect(self._translator, lines, waiting, self._settings)

    def close(self) -> None:
        """See `BulkEngine`."""
        self._translator.close(drain=False)
