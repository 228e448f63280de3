"""Levels of a bundle beside CTranslate2 with the same full weights: BLEU, and times taken in the same rounds."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hmc.artifact.bundle.checks import validate
from hmc.artifact.checkpoint.checkpoint import load_checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.significance import bleu, bleu_statistics
from hmc.benchmark.measure.latency import LatencyResult, Setting, measure_latency
from hmc.benchmark.measure.quality import Progress, Translates, silent, translate_all
from hmc.benchmark.measure.text import TestSet
from hmc.benchmark.peers.ctranslate2 import ctranslate2_systems, ctranslate2_version
from hmc.serving import Translator

SETTLE_S = 0.25
"""Pause between two systems. CTranslate2's idle threads spin for up to 0.2 s, which would slow the next system."""
INT8 = "ct2-int8"


@dataclass(frozen=True)
class Comparison:
    """What was measured. Systems are levels by their name, and CTranslate2 by compute type and use of the cores."""

    version: str
    """Of CTranslate2."""
    bleu: dict[str, float]
    """System → BLEU."""
    latency: tuple[LatencyResult, ...]

    def at(self, system: str, setting: Setting) -> LatencyResult:
        """The times of a system. Raises StopIteration if it was not measured at the setting."""
        return next(r for r in self.latency if (r.level, r.batch, r.beam) == (system, setting.batch, setting.beam))

    def rival(self, setting: Setting) -> LatencyResult:
        """CTranslate2 at int8, at the use of the cores that is faster at this setting."""
        names = [system for system in self.bleu if system.startswith(INT8)]
        return min((self.at(name, setting) for name in names), key=lambda result: result.ratio)

    def speed(self, system: str, setting: Setting) -> float:
        """How many times as fast a system is as CTranslate2 at int8 (`rival`)."""
        return self.rival(setting).ratio / self.at(system, setting).ratio

    def to_dict(self) -> dict[str, Any]:
        """The comparison as values for JSON."""
        return {"version": self.version, "bleu": self.bleu, "latency": [asdict(result) for result in self.latency]}


def compare_with_ctranslate2(
    bundle: Path, levels: Sequence[str], checkpoint: Path, test_set: TestSet,
    settings: Sequence[Setting], *, timed: int, rounds: int, progress: Progress = silent,
) -> Comparison:  # fmt: skip
    """Measures levels of a bundle and CTranslate2 in turn: in each round all translate the same sentences.

    checkpoint: whose full weights CTranslate2 gets; the levels should be made of it. out: folder for CTranslate2's
    files. timed: sentences timed in a round. Quality is scored with the beam of the first setting. Raises
    InvalidRequestError without references, and ImportError where CTranslate2 is not installed.
    """
    if test_set.references is None:
        raise InvalidRequestError(f"test set {test_set.name}: quality needs references; give --ref FILE")
    manifest = validate(bundle)
    with ExitStack() as stack, TemporaryDirectory() as folder:
        systems: dict[str, Translates] = {}
        for name in levels:
            progress(f"{name}: loading and warm-up")
            translator = stack.enter_context(Translator(bundle, name, device="cpu", manifest=manifest))
            translator.warm_up()
            systems[name] = translator
        progress("CTranslate2: loading")
        systems |= ctranslate2_systems(load_checkpoint(checkpoint), Path(folder))
        latency = measure_latency(
            systems, test_set.texts[:timed], settings, rounds=rounds, reference=levels[0], progress=progress,
            settle_s=SETTLE_S,
        )  # fmt: skip
        scores = {}
        for name, system in systems.items():
            progress(f"{name}: quality")
            written = translate_all(system, name, test_set.sources, settings[0].beam).hypotheses
            scores[name] = float(bleu(bleu_statistics(written, test_set.references).sum(0)))
    return Comparison(ctranslate2_version(), scores, tuple(latency))
