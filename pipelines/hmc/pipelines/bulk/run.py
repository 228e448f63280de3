"""A bulk translation from corpus to report. A run that was killed goes on, and ends with the same bytes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hmc.artifact.bundle.manifest import read_manifest
from hmc.artifact.errors import InvalidArtifactError, InvalidRequestError
from hmc.artifact.stopping import stoppable
from hmc.pipelines.bulk.corpus import Corpus
from hmc.pipelines.bulk.engines import BulkEngine, BulkLevel, EngineName, LocalEngine
from hmc.pipelines.bulk.output import FIRST, NOTES, TRANSLATIONS, ShardFiles, Store, open_store
from hmc.pipelines.bulk.settings import BulkSettings
from hmc.pipelines.progress import Meter, Report, Step, silent

REPORT = "report.json"
FAILURES = "failures.jsonl"
COUNTS = ("lines", "empty", "cut", "unfinished")
Open = Callable[[EngineName, BulkLevel, BulkSettings], BulkEngine]


@dataclass(frozen=True)
class Translated:
    """The result of a bulk translation."""

    lines: int
    empty: int
    """Blank lines. Their translations are blank."""
    cut: int
    """Lines with more tokens than the model has positions: their end is not translated."""
    unfinished: int
    """Lines whose translation reached its greatest length before it ended."""
    failed: int
    """Lines without a translation."""
    shards: int
    lines_now: int
    """Lines that this run has translated."""
    seconds: float
    """That it took, from the loaded level to the last file."""

    @property
    def lines_per_second(self) -> float:
        """Speed of this run; 0 if nothing was left to do."""
        return self.lines_now / self.seconds if self.lines_now and self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        """Returns the result as JSON values."""
        return asdict(self) | {"lines_per_second": round(self.lines_per_second, 1)}


def open_engine(name: EngineName, level: BulkLevel, settings: BulkSettings) -> BulkEngine:
    """Starts an engine; close it. Raises as `Translator`, and InvalidRequestError if Ray is not installed."""
    if name == "local":
        return LocalEngine(level, settings)
    from hmc.pipelines.bulk.on_ray import RayEngine

    return RayEngine(level, settings)


def translate_corpus(
    sources: Sequence[str],
    out: str,
    level: BulkLevel,
    settings: BulkSettings | None = None,
    engine: EngineName = "local",
    *,
    report: Report = silent,
    step: Step = silent,
    start: Open = open_engine,
) -> Translated:
    """Translates every line of `sources` into the folder `out`. Both are paths, or URLs that fsspec knows.

    report: called with the progress. step: called with each step before the first translation. start: opens the engine,
    if a line is left. The same corpus, level and settings give the same bytes, with any engine and however often the
    run was interrupted.

    Raises InvalidRequestError if `out` belongs to another corpus, bundle, level or options, and if a file cannot be
    read; lines that cannot be translated are in the report. Raises also the errors of the engine, and Stopped after
    SIGTERM or Ctrl-C. Everything that was written before stays, and the same call goes on.
    """
    settings = settings or BulkSettings()
    files = ShardFiles(settings, level.name)
    store = open_store(out)
    step("reading the corpus")
    corpus = Corpus(sources, settings.text_field)
    request = {
        "bundle": read_manifest(level.bundle).version,
        "level": level.name,
        "sources": [source.identity() for source in corpus.sources],
        **settings.identity(),
    }
    shards = -(-corpus.lines // settings.shard_lines)

    def kept() -> str:
        written = shards - len(_missing(store, files, shards))
        return f"{written:,} of {shards:,} shards in {out} are kept; the same command goes on after them"

    with stoppable(kept), store.taken(request):
        missing = _missing(store, files, shards)
        meter = Meter(corpus.lines, report)
        seconds = 0.0
        if missing:
            step("loading the level")
            try:
                running = start(engine, level, settings)
            except BaseException:
                if len(missing) == shards:  # nothing is there yet, and other options may follow
                    store.remove(FIRST.name)
                raise
            began = time.monotonic()
            try:
                left = meter.left(corpus.shards(settings.shard_lines), missing)
                for number, found in running.translate((n, [line() for line in part]) for n, part in left):
                    # The notes come first: a shard whose translations are there is complete.
                    store.write(files.notes_name(number), files.notes(number, found))
                    store.write(files.translations_name(number), files.translations(number, found))
                    meter.add(len(found))
            finally:
                running.close()
            seconds = time.monotonic() - began
            step("reading the corpus again")
            if _missing(store, files, shards) or not _is_same(corpus, sources, settings):
                store.write(FIRST.name, FIRST.written(request | {"sources changed while they were read": True}))
                named = ", ".join(sources)
                raise InvalidRequestError(f"{named} changed while it was read: run again into another folder")
        counts = _write_report(store, shards)
        return Translated(**counts, shards=shards, lines_now=meter.done, seconds=round(seconds, 3))


def _is_same(corpus: Corpus, sources: Sequence[str], settings: BulkSettings) -> bool:
    """Whether the files hold what they held when the run began."""
    try:
        return Corpus(sources, settings.text_field).sources == corpus.sources
    except InvalidRequestError:
        return False


def _missing(store: Store, files: ShardFiles, shards: int) -> set[int]:
    there = {f"{folder}/{name}" for folder in (TRANSLATIONS, NOTES) for name in store.names(folder)}
    return {n for n in range(shards) if not {files.notes_name(n), files.translations_name(n)} <= there}


def _write_report(store: Store, shards: int) -> dict[str, int]:
    """Adds up the notes of all shards, and writes the report unless it is there."""
    counts = dict.fromkeys(COUNTS, 0)
    failures = list[dict[str, Any]]()
    for number in range(shards):
        notes = _notes(store, number)
        for name in COUNTS:
            counts[name] += notes[name]
        failures += notes["failures"]
    counts["failed"] = len(failures)
    if REPORT not in store.names(""):
        lines = [json.dumps(failure, ensure_ascii=False) + "\n" for failure in failures]
        store.write(FAILURES, "".join(lines).encode())
        store.write(REPORT, (json.dumps({**counts, "shards": shards}, indent=1) + "\n").encode())
    return counts


def _notes(store: Store, number: int) -> dict[str, Any]:
    name = ShardFiles.notes_name(number)
    try:
        notes = json.loads(store.read(name))
        if not {*COUNTS, "failures"} <= notes.keys():
            raise ValueError("a field is missing")
    except (ValueError, AttributeError) as error:
        fix = "Delete this file, and run the command again: its lines are translated anew."
        raise InvalidArtifactError(name, [str(error)], fix) from error
    return notes  # type: ignore[no-any-return]
