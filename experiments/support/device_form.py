"""Levels in device form on this machine's CPU: the search in the graph against the search on the host."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.support.decoding import opened
from experiments.support.judge import Comparison, Judge, compare
from hmc.artifact.bundle.manifest import Manifest, read_manifest
from hmc.artifact.checkpoint.checkpoint import load_checkpoint
from hmc.serving.requests.options import DecodeOptions
from hmc.serving.requests.results import DecodedHypothesis
from hmc.serving.scheduling.engine import Engine

LARGEST_DIFFERENCE = 1e-4
"""Of the scores that two graphs in fp32 give one translation; they add in different orders."""
Found = list[tuple[DecodedHypothesis, ...]]


@dataclass(frozen=True)
class DeviceForm:
    """What one level in device form finds, compared."""

    sentences: int
    same_as_host: int
    """Sentences for which the search on the host, through the same graphs, finds the same to the last bit: all
    hypotheses with their scores and those of their tokens."""
    same_as_cpu: Comparison
    """The best hypotheses against those of the same level for CPUs."""
    score_difference: float
    """The largest difference of their scores, where ids are the same."""

    @property
    def well(self) -> bool:
        """Whether nothing differs that must not."""
        explained = self.same_as_cpu.explained and self.score_difference <= LARGEST_DIFFERENCE
        return explained and self.same_as_host == self.sentences

    def __str__(self) -> str:
        return (
            f"as the host's search through the same graphs, to the last bit: {self.same_as_host} of {self.sentences}\n"
            f"    as the level for CPUs: {self.same_as_cpu}; scores differ by at most {self.score_difference:.1e}"
        )

    def to_json(self) -> dict[str, Any]:
        """The comparison as values for JSON."""
        return {
            "same_as_host": self.same_as_host,
            "same_as_cpu": self.same_as_cpu.to_json(),
            "score_difference": self.score_difference,
        }


def check_device_form(
    bundles: tuple[Path, Path], manifest: Manifest, level: str, checkpoint: Path, sources: list[list[int]],
    options: DecodeOptions,
) -> DeviceForm:  # fmt: skip
    """Compares one level of both bundles: of that for CPUs, which has the manifest, and of that in device form."""
    for_cpu, in_device_form = bundles
    options = replace(options, n_best=options.beam_size)
    with opened(for_cpu, manifest, level, 0) as engine:
        expected = _decode(engine, sources, options)
    with opened(in_device_form, read_manifest(in_device_form), level, 0) as engine:
        found = _decode(engine, sources, options)
        on_host = _decode(engine, sources, options, on_host=True)
    judge = Judge(load_checkpoint(checkpoint), manifest.level(level).layout, length_penalty=options.length_penalty)
    compared = compare(
        sources, [h[0].ids for h in found], [h[0].ids for h in expected], judge,
        lambda n, pair: judge.near_tie(sources[n], pair, beam=options.beam_size, limit=options.max_length or 0),
    )  # fmt: skip
    pairs = [(a[0], b[0]) for a, b in zip(found, expected, strict=True)]
    return DeviceForm(
        len(sources),
        sum(_bits(a) == _bits(b) for a, b in zip(found, on_host, strict=True)),
        compared,
        max((abs(a.score - b.score) for a, b in pairs if a.ids == b.ids), default=0.0),
    )


def _decode(engine: Engine, sources: list[list[int]], options: DecodeOptions, *, on_host: bool = False) -> Found:
    """All sentences at once. on_host: whoever listens to a translation gets the search on the host."""
    listen = _ignore if on_host else None
    futures = [engine.submit(source, options, progress=listen, block=True) for source in sources]
    return [future.result().hypotheses for future in futures]


def _ignore(_: object) -> None:
    """Listens to the certain tokens of a translation, and does nothing."""


def _bits(hypotheses: tuple[DecodedHypothesis, ...]) -> list[tuple[object, ...]]:
    return [(h.ids, h.score, h.complete, h.token_scores) for h in hypotheses]
