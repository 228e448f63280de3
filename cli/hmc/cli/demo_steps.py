"""The steps of `hmc demo` as functions that return data: compile, serve and translate, benchmark, plot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hmc.artifact.bundle.manifest import MANIFEST, Manifest
from hmc.artifact.checkpoint.checkpoint import checkpoint_digest
from hmc.artifact.errors import HmcError, InvalidRequestError
from hmc.artifact.precisions import Precision
from hmc.benchmark.measure.quality import record_quality
from hmc.benchmark.measure.text import TestSet, read_sentences
from hmc.benchmark.report.picture import write_picture
from hmc.benchmark.runner import record, run_benchmark
from hmc.benchmark.settings import BenchmarkSettings
from hmc.cli.common.outputs import check_run_folder
from hmc.cli.demo_scores import Agreement, agreement, read_scores
from hmc.compiler.bundle.builder import BundleBuilder
from hmc.compiler.bundle.requests import LevelRequest
from hmc.compiler.bundle.writer import checkpoints_of, progress_steps
from hmc.serving.client import Client
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings

DATA = Path(__file__).with_name("demo_data")
CHECKPOINT = DATA / "checkpoint"
LEVELS = DATA / "levels"
FAST = DATA / "fast"
"""The model with all heads, weights that all levels with fewer share, and a level that has lost decoder layers too."""
CALIBRATION = DATA / "calibration.en"
SRC = DATA / "test.en"
REF = DATA / "test.de"
SCORES = DATA / "scores.json"
"""Recorded scores of the levels, and of the other engine."""
HEADS = (75, 58)
"""Heads of the levels that LEVELS has."""
PRECISIONS: tuple[Precision, ...] = ("fp32", "int8")
"""Of the level with all heads. The others are in the last one alone: in fp32 each is slower than all heads in int8, and
worse."""
EXAMPLES = (14, 111, 208, 336)
"""Lines of the test set, counted from 0, whose translations are shown. Levels translate them differently."""
DEVICE = "cpu"
PEER = "ctranslate2"
RESULTS = "results.json"
PICTURE = "quality.svg"
"""Files in the demo's folder."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Size:
    """Size of the benchmark."""

    sentences: int | None = None
    """Sentence pairs scored; None: all."""
    timed: int = 32
    rounds: int = 3


SIZE = Size()
"""With it the demo takes less than two minutes on two cores."""


@dataclass(frozen=True)
class Example:
    """A sentence, translated at every level."""

    source: str
    reference: str
    translations: dict[str, str]
    """Level name → translation."""


@dataclass(frozen=True)
class Demo:
    """The checkpoints to demonstrate, the folder for the results, and the size of the benchmark."""

    checkpoint: Path
    levels: Path
    fast: Path | None
    """None: there is no such level."""
    out: Path
    size: Size = SIZE

    @property
    def bundle(self) -> Path:
        """The bundle that the first step compiles."""
        return self.out / "bundle"

    def compile(self, progress: Progress, expect: Callable[[int], None] = lambda _: None) -> Manifest:
        """Compiles every level. int8 is calibrated on sentences outside the test set.

        progress: called when a step begins. expect: called before, with the number of steps.
        """
        given = [path for path in (self.checkpoint, self.levels, self.fast) if path]
        if missing := next((path for path in given if not path.is_dir()), None):
            raise InvalidRequestError(
                f"{missing}: the checkpoint is missing; install HMC again, or clone the whole repository"
            )
        check_run_folder(self.out)
        for name in (RESULTS, PICTURE):
            if (self.out / name).exists() and not (self.bundle / MANIFEST).is_file():
                raise InvalidRequestError(f"--out {self.out} holds {name}, which no demo wrote; choose another folder")
        fast = [LevelRequest(self.fast, name="fast")] if self.fast else []
        requests = [LevelRequest(self.checkpoint), *(LevelRequest(self.levels, heads) for heads in HEADS), *fast]
        plan = [(request, PRECISIONS[-1], False) for request in requests[1:]]
        plan = [*((requests[0], precision, False) for precision in PRECISIONS), *plan]
        expect(progress_steps(len(plan), PRECISIONS[-1:]))
        with BundleBuilder.open(
            self.bundle, checkpoints_of(requests), calibration=read_sentences(CALIBRATION), progress=progress
        ) as builder:
            builder.prepare(plan)
            levels = [builder.add(request, precision, with_shortlist=False) for request, precision, _ in plan]
            return builder.finish(levels)

    def translate(self) -> tuple[str, list[Example]]:
        """Serves the bundle on a free port and translates the examples at every level with the gRPC client."""
        test_set = TestSet.read(SRC, REF)
        sources = [test_set.sources[line] for line in EXAMPLES]
        found: list[dict[str, str]] = [{} for _ in EXAMPLES]
        with BackgroundServer(self.bundle, ServerSettings(port=0, device=DEVICE)) as server:
            address = server.address
            with Client(address) as client:
                client.wait_ready()
                for level in client.levels().levels:
                    answer = client.translate(sources, level.name, timeout=60)
                    if answer.level != level.name:
                        raise HmcError(f"level {level.name} was requested, but level {answer.level} answered")
                    for translations, translation in zip(found, answer, strict=True):
                        translations[level.name] = translation.text
        references = test_set.references or ()
        examples = [
            Example(source, references[line], translations)
            for source, line, translations in zip(sources, EXAMPLES, found, strict=True)
        ]
        return address, examples

    def benchmark(self, progress: Progress, expect: Callable[[int], None]) -> Agreement:
        """Measures quality, and latency at batch 1 and 32, beside CTranslate2 if that is installed. Records in the
        bundle's manifest the times, and the scores on six kinds of text if the levels are those that were scored."""
        settings = BenchmarkSettings(
            bundle=self.bundle,
            src=SRC,
            ref=REF,
            batches=(1, min(32, self.size.timed)),
            beams=(4,),
            rounds=self.size.rounds,
            limit=self.size.sentences,
            latency_limit=self.size.timed,
            device=DEVICE,
            memory=False,
            test_set_name="the demo test set",
            peers=(PEER,) if find_spec(PEER) else (),
            checkpoint=self.checkpoint,
        )
        scores = read_scores(SCORES)
        report = run_benchmark(settings, progress=progress, expect=expect)
        checkpoints = {level.name: level.source_checkpoint for level in record(self.bundle, report).levels}
        checkpoints |= {peer.name: checkpoint_digest(self.checkpoint) for peer in report.peers}
        found = agreement(report, checkpoints, scores)
        record_quality(self.bundle, {level.name: level.recorded for level in found.report.levels if level.recorded})
        return found

    def draw(self, found: Agreement) -> Path:
        """The picture of quality against speed, by recorded scores if they hold."""
        report = found.report
        if found.holds:
            report = replace(report, peers=tuple(peer for peer in report.peers if peer.recorded))
        return write_picture(report, self.out / PICTURE, recorded=found.holds)


def result(address: str, examples: list[Example], found: Agreement, seconds: dict[str, float]) -> dict[str, Any]:
    """The results of the demo as values for JSON. seconds: duration of each step."""
    return {
        "address": address,
        "examples": [vars(example) for example in examples],
        "seconds": seconds,
        "recorded": found.said,
        "report": found.report.to_dict(),
    }
