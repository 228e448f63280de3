"""A translator without a model, and a report without a measurement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from hmc.artifact.bundle.manifest import Quality
from hmc.benchmark.measure.latency import LatencyResult, RequestSize
from hmc.benchmark.measure.machine import Machine
from hmc.benchmark.measure.memory import MemoryResult
from hmc.benchmark.report.results import BundleInfo, Conditions, LevelReport, Report, contract
from hmc.serving import DecodeOptions, Translation


class FakeTranslator:
    """Applies a function to every text; `on_call` sees each request."""

    def __init__(
        self, function: Callable[[str], str], on_call: Callable[[Sequence[str], int], None] | None = None
    ) -> None:
        self.function, self.on_call = function, on_call

    def translate(
        self, texts: Sequence[str], options: DecodeOptions | None = None, *, segmentation: str = "auto"
    ) -> list[Translation]:
        assert segmentation == "none", "what is measured is one sentence a text"
        beam = (options or DecodeOptions()).beam_size
        if self.on_call:
            self.on_call(texts, beam)
        made = [self.function(text) for text in texts]
        return [Translation(text, -1.0, len(text.split()) + 1, len(text.split()) + 1) for text in made]


def quality(level: str, bleu: float, low: float, high: float, *, reference: float = 30.0, beam: int = 4) -> Quality:
    return Quality(
        test_set="test",
        sentences=10,
        beam=beam,
        bleu=bleu,
        chrf=50.0,
        bleu_delta=bleu - reference,
        ci_low=low,
        ci_high=high,
        p_value=1.0 if level == "full" else 0.0,
        reference_level="full",
        bleu_signature="nrefs:1",
        chrf_signature="nrefs:1",
    )


def level(name: str, heads: int, precision: str, p50_ms: float, measured: Quality | None, size: int) -> LevelReport:
    times = LatencyResult(name, 1, 4, 7, p50_ms, 2 * p50_ms, 3 * p50_ms, 1000 / p50_ms, 9000 / p50_ms, p50_ms / 20)
    memory = MemoryResult(200 * 2**20, 50 * 2**20)
    qualities = (measured,) if measured else ()
    return LevelReport(name, heads, precision, 1000, size, "cpu", qualities, (times,), memory)


def report(*, with_quality: bool = True) -> Report:
    """Three levels at batch 1, beam 4."""
    scores = [quality("full", 30.0, 0, 0), quality("h72", 29.5, -1, 0.2), quality("h72-int8", 29.0, -2, -0.1)]
    levels = [
        level(name, heads, precision, p50_ms, measured if with_quality else None, size)
        for (name, heads, precision, p50_ms, size), measured in zip(
            [
                ("full", 144, "fp32", 20.0, 32 * 2**20),
                ("h72", 72, "fp32", 15.0, 24 * 2**20),
                ("h72-int8", 72, "int8", 8.0, 7 * 2**20),
            ],
            scores,
            strict=True,
        )
    ]
    conditions = Conditions(
        test_set="test",
        sentences=10,
        timed_sentences=7,
        timed_at_batch=(7,),
        rounds=1,
        batches=(1,),
        beams=(4,),
        headline=RequestSize(1, 4),
        threads=2,
        quality_reference="full" if with_quality else None,
        latency_reference="full",
        memory=True,
    )
    machine = Machine("A CPU", 2, 4, 2**33, "Linux", "3.11", {"hmc": "0.1.0"}, {"cpu": "A CPU"}, 0.1)
    info = BundleInfo(str(Path("bundle")), "0" * 16, "en", "de")
    return Report(contract(conditions, {x.name: "cpu" for x in levels}), info, conditions, machine, tuple(levels))
