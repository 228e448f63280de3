"""What `hmc demo` does, step by step, as functions that return data: compile, serve and translate, benchmark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hmc.artifact.bundle import MANIFEST, Manifest, Precision
from hmc.artifact.errors import HmcError, InvalidRequestError
from hmc.benchmark.plots import write_pareto
from hmc.benchmark.report import Report
from hmc.benchmark.runner import record, run_benchmark
from hmc.benchmark.settings import BenchmarkSettings
from hmc.benchmark.text import TestSet, read_sentences
from hmc.cli.outputs import check_run_folder
from hmc.compiler.bundle_builder import LevelRequest
from hmc.compiler.bundle_writer import compile_bundle
from hmc.serving.client import Client
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings

DATA = Path(__file__).with_name("demo_data")
CHECKPOINT, CALIBRATION = DATA / "checkpoint", DATA / "calibration.en"
SRC, REF = DATA / "test.en", DATA / "test.de"
HEADS = (144, 72, 36)
PRECISIONS: tuple[Precision, ...] = ("fp32", "int8")
EXAMPLES = (3, 7, 57)
"""Lines of the test set, from 0, that are shown at every level."""
DEVICE = "cpu"
RESULTS, PLOT = "results.json", "pareto"
"""Files of a demo beside its bundle; the plot is PLOT.png and PLOT.svg."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Size:
    """How much the benchmark measures."""

    sentences: int | None = None
    """Sentence pairs scored; None: all."""
    timed: int = 32
    rounds: int = 3


SIZE = Size()
"""Fits, with all else, into two minutes on two cores."""


@dataclass(frozen=True)
class Example:
    """A sentence at every level."""

    source: str
    reference: str
    translations: dict[str, str]
    """Level name → translation."""


@dataclass(frozen=True)
class Demo:
    """Where the results go."""

    checkpoint: Path
    out: Path
    size: Size = SIZE

    @property
    def bundle(self) -> Path:
        """The bundle that the first step compiles."""
        return self.out / "bundle"

    def compile(self, progress: Progress) -> Manifest:
        """Every head budget at every precision, int8 calibrated on sentences that are not in the test set."""
        if not self.checkpoint.is_dir():
            raise InvalidRequestError(
                f"{self.checkpoint}: the checkpoint is missing; install hmc again, or clone it whole"
            )
        check_run_folder(self.out)
        for name in (RESULTS, *(f"{PLOT}{suffix}" for suffix in (".png", ".svg"))):
            if (self.out / name).exists() and not (self.bundle / MANIFEST).is_file():
                raise InvalidRequestError(f"--out {self.out} holds {name}, and no demo; choose another folder")
        return compile_bundle(
            [LevelRequest(self.checkpoint, heads) for heads in HEADS],
            self.bundle,
            precisions=PRECISIONS,
            calibration=read_sentences(CALIBRATION),
            progress=progress,
        )

    def translate(self) -> tuple[str, list[Example]]:
        """Serves the bundle on a free port and asks for the examples at every level, through the gRPC client."""
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
                        raise HmcError(f"asked for level {level.name}, and {answer.level} answered")
                    for translations, translation in zip(found, answer, strict=True):
                        translations[level.name] = translation.text
        references = test_set.references or ()
        examples = [
            Example(source, references[line], translations)
            for source, line, translations in zip(sources, EXAMPLES, found, strict=True)
        ]
        return address, examples

    def benchmark(self, say: Progress, progress: Progress) -> Report:
        """Quality on the test set, latency sentence by sentence and in batches of 16; the manifest gets both."""
        settings = BenchmarkSettings(
            bundle=self.bundle,
            src=SRC,
            ref=REF,
            batches=(1, min(16, self.size.timed)),
            beams=(4,),
            rounds=self.size.rounds,
            limit=self.size.sentences,
            latency_limit=self.size.timed,
            device=DEVICE,
            memory=False,
            test_set_name="the demo test set",
        )
        report = run_benchmark(settings, say=say, progress=progress)
        record(self.bundle, report)
        return report

    def plot(self, report: Report) -> list[Path]:
        """The plot in both formats."""
        return write_pareto(report, self.out / PLOT)


def result(address: str, examples: list[Example], report: Report, seconds: dict[str, float]) -> dict[str, Any]:
    """Everything the demo found, as JSON-ready values. Seconds are those of each step."""
    shown = [vars(example) for example in examples]
    return {"address": address, "examples": shown, "seconds": seconds, "report": report.to_dict()}
