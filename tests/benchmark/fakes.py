"""A translator without a model, and a report without a measurement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from hmc.artifact.bundle.manifest import Quality
from hmc.benchmark import LevelReport, Report
from hmc.benchmark.load.results import LatencyObjective, LoadCall, LoadCurve, load_point
from hmc.benchmark.measure.latency import FirstToken, LatencyResult, RequestSize
from hmc.benchmark.measure.machine import Machine
from hmc.benchmark.measure.memory import MemoryResult
from hmc.benchmark.report.results import BundleInfo, Conditions, PeerReport, Sentence, contract
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
    samples = ((p50_ms,) * 5 + (2 * p50_ms, 3 * p50_ms),)  # seven requests: p95 and p99 are the slowest
    rates = (1000 / p50_ms, 9000 / p50_ms, p50_ms / 20)
    times = LatencyResult(name, 1, 4, 7, p50_ms, 2 * p50_ms, None, *rates, samples_ms=samples)
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


def whole_report() -> Report:
    """Three levels and a peer, ten sentences, a load curve: everything that a page shows."""
    plain = report()
    lines = [f"source {number} <b>of</b> ten" for number in range(10)]
    right = [f"Satz Nummer {number} von zehn ist hier" for number in range(10)]
    wrong = [*right[:9], "etwas anderes steht hier"]
    layouts = {"full": [[0, 1], [0, 1]], "h72": [[0], [0, 1]], "h72-int8": [[], [1]]}
    levels = tuple(
        replace(
            each,
            translations=tuple(right if each.name == "full" else wrong),
            head_layout=dict.fromkeys(("encoder_self", "decoder_self", "cross"), layouts[each.name]),
            ter=40.0,
            first_token=FirstToken(4, 7, 5.0, None, 9.0),
        )
        for each in plain.levels
    )
    times = replace(levels[0].latency[0], level="Peer", ratio=1.5)
    scored = (quality("Peer", 29.9, -0.3, 0.2),)
    peer = PeerReport("Peer", "1.0", {"batch 1, beam 4": "int8"}, scored, (times,), 41.0, 0.9, tuple(right))
    calls = [LoadCall(n / 10, 0.05 + 0.001 * n, "answered", "OK", "full") for n in range(80)]
    points = [
        load_point(calls, rate=10.0, seconds=8.0, objective=LatencyObjective(500.0), late_s=0.0, stopped=False),
        load_point(calls[:20], rate=20.0, seconds=1.0, objective=LatencyObjective(500.0), late_s=0.0, stopped=True),
    ]
    curve = LoadCurve("full", "localhost:1", "poisson", 4, LatencyObjective(500.0), tuple(points))
    sentences = tuple(
        Sentence(line, text, 4 + number) for number, (line, text) in enumerate(zip(lines, right, strict=True))
    )
    return replace(plain, levels=levels, peers=(peer,), load=(curve,), sentences=sentences, heads=2, commit="abc123")
