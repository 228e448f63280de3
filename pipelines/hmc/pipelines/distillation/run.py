"""`hmc distill`: a teacher's translations of plain source text (Kim & Rush 2016, section 3.2). A run that was killed
goes on where it was, and ends with the same bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from hashlib import blake2b
from itertools import islice
from pathlib import Path

from hmc.artifact.checkpoint.checkpoint import checkpoint_digest, load_checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.stopping import stoppable
from hmc.artifact.tokenizer.tokenizer import Tokenizer, open_tokenizer
from hmc.engine.requests.caller import Priority
from hmc.pipelines.distillation.filters import Filters, Skipped
from hmc.pipelines.distillation.results import Distilled, write_results
from hmc.pipelines.distillation.settings import FIRST, IMPORTED, TEACHER, DistillSettings
from hmc.pipelines.distillation.shards import Record, TeacherHypothesis, shard_path, write_shard
from hmc.pipelines.distillation.sources import SourceLine, all_lines, read_references, read_sources, sample
from hmc.pipelines.distillation.teacher import as_checkpoint, compile_teacher, open_teacher, precision_of
from hmc.pipelines.folders import taken_folder
from hmc.pipelines.progress import Meter, Report, Step, silent
from hmc.pipelines.window import in_turn, longest_first
from hmc.serving.requests.results import Translation
from hmc.serving.translator import Translator

CALIBRATION = 1024
"""Source sentences, spread over the text, that the teacher is calibrated with."""
PlannedLine = tuple[SourceLine, Skipped | None]
"""A line, and why it is not translated; None: it is."""


def distill(
    teacher: Path,
    sources: Sequence[Path],
    out: Path,
    settings: DistillSettings | None = None,
    filters: Filters | None = None,
    *,
    held_out: int = 0,
    references: Sequence[Path] = (),
    report: Report = silent,
    step: Step = silent,
) -> Distilled:
    """Translates every line of `sources` with the teacher's beam search into the folder `out`, and filters the result.

    teacher: a checkpoint, or a MarianMT directory, which is imported into the folder. sources: text files, plain or
    .gz. held_out: sentence pairs to hold out as dev text. references: a file for each of `sources`, line for line; the
    training text then gets the one of a line's `n_best` translations that is closest to the reference. report: called
    with the progress. step: called with each step before the first translation. The same input gives the same bytes,
    however often the run was interrupted.

    Raises InvalidRequestError if `out` belongs to another teacher, text or search, if a file cannot be read, if
    references do not fit, and if nothing is left to train with; InvalidArtifactError for a damaged teacher;
    DeviceUnavailableError; Stopped after SIGTERM or Ctrl-C, which drops the file of translations that is being made.
    """
    settings = settings or DistillSettings()
    filters = filters or Filters()
    precision = precision_of(settings)
    files = read_sources(sources)
    human = read_references(references, files)
    if human and settings.n_best < 2:
        raise InvalidRequestError("references: they choose among several translations of a line; give n_best 2 or more")
    checkpoint = as_checkpoint(teacher, out / IMPORTED)
    tokenizer = open_tokenizer(load_checkpoint(checkpoint).tokenizer)
    source_text = [file.identity() for file in files]
    identity = {"teacher": checkpoint_digest(checkpoint), "sources": source_text, **settings.identity(precision)}
    total = sum(file.lines for file in files)
    shards = -(-total // settings.shard_lines)

    def kept() -> str:
        written = sum(shard_path(out, number).is_file() for number in range(shards))
        return f"{written:,} of {shards:,} files of translations in {out} are kept; the same command goes on after them"

    with stoppable(kept), taken_folder(out, identity, FIRST):
        missing = {number for number in range(shards) if not shard_path(out, number).is_file()}
        if missing:
            text = sample(sources, total, CALIBRATION)
            bundle = compile_teacher(checkpoint, out / TEACHER, precision, text, step)
            step("loading the teacher")
            with open_teacher(bundle, settings) as translator:
                longest = min(settings.max_length, translator.manifest.architecture.max_positions)
                plan = _Plan(sources, settings, tokenizer, longest, missing)
                _translate(plan, translator, out, Meter(total, report))
        return write_results(out, shards, filters, held_out, human)


class _Plan:
    """Reads the source text in parts, one for each file of translations, and finds the lines to translate."""

    def __init__(
        self, sources: Sequence[Path], settings: DistillSettings, tokenizer: Tokenizer, longest: int, missing: set[int]
    ) -> None:
        self.sources = sources
        self.settings = settings
        self.tokenizer = tokenizer
        self.longest = longest
        self.missing = missing
        self._seen: set[bytes] = set()

    def parts(self) -> Iterator[tuple[int, list[PlannedLine]]]:
        """Yields number and lines of every missing part. The lines of other parts are only noted as seen."""
        lines = all_lines(self.sources)
        number = 0
        while part := list(islice(lines, self.settings.shard_lines)):
            wanted = number in self.missing
            yield number, [(line, self._skipped(line, wanted)) for line in part]
            number += 1

    def _skipped(self, line: SourceLine, wanted: bool) -> Skipped | None:
        if not line.text.strip():
            return "empty"
        if self.settings.deduplicate:
            digest = blake2b(line.text.strip().encode(), digest_size=12).digest()
            if digest in self._seen:
                return "duplicate"
            self._seen.add(digest)
        if wanted and self._length(line) > self.longest:
            return "too_long"
        return None

    def _length(self, line: SourceLine) -> int:
        """Tokens of a line with its end."""
        try:
            return len(self.tokenizer.encode(line.text)) + 1
        except InvalidRequestError as error:  # an unknown target language of a multilingual model
            raise InvalidRequestError(f"{line.place}: {error}") from error


def _translate(plan: _Plan, translator: Translator, out: Path, meter: Meter) -> None:
    """Writes every missing file of translations."""
    options = plan.settings.options()

    def submit_one(planned: PlannedLine) -> Future[Translation] | None:
        line, skipped = planned
        return None if skipped else translator.submit(line.text, options, block=True, priority=Priority.BULK)

    def submit(part: tuple[int, list[PlannedLine]]) -> list[Future[Translation] | None]:
        return longest_first(part[1], lambda planned: planned[0].text, submit_one)

    for (number, part), futures in in_turn(meter.left(plan.parts(), plan.missing), submit):
        records = []
        for (line, skipped), future in zip(part, futures, strict=True):
            done = Record(line.number, line.text, skipped=skipped) if future is None else _record(line, future.result())
            records.append(done)
            meter.add()
        write_shard(shard_path(out, number), records)


def _record(line: SourceLine, translation: Translation) -> Record:
    hypotheses = tuple(
        TeacherHypothesis(found.text, round(found.score, 5), found.target_tokens, found.hit_max_length)
        for found in translation.hypotheses
    )
    return Record(line.number, line.text, translation.source_tokens, hypotheses)
