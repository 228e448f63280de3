"""Writes docs/quality.svg, recorded BLEU of the embedded levels against times of a report: `python -m
tests.levels_picture FILE`. BLEU of the other engine is that of the page of levels."""

from __future__ import annotations

import gzip
import re
import sys
from pathlib import Path

from pydantic import TypeAdapter

from hmc.artifact.storage.files import write_whole
from hmc.benchmark import Report
from hmc.benchmark.measure.latency import RequestSize
from hmc.benchmark.report.picture import Point, draw
from hmc.cli import demo_steps
from hmc.cli.demo_scores import read_scores
from tests.processes import REPOSITORY

TIMES = REPOSITORY / "experiments" / "results" / "embedded-levels-native.json.gz"
NAMES = {
    "full-int8": "all 144 heads", "h75-int8": "75 heads", "h58-int8": "58 heads", "fast-int8": "fast",
    "CTranslate2": "CTranslate2",
}  # fmt: skip
"""Level or engine → what the pages call it. The first one is what others are compared with."""


def times() -> Report:
    """The report with the times that the pages tell."""
    return TypeAdapter(Report).validate_json(gzip.decompress(TIMES.read_bytes()))


def speeds(batch: int) -> dict[str, float]:
    """Level or engine → times as fast as CTranslate2, at beam 4."""
    found = {system.name: system.latency_at(RequestSize(batch, 4)).ratio for system in times().systems}
    return {name: found["CTranslate2"] / found[name] for name in NAMES}


def picture() -> str:
    """The picture of requests of one sentence."""
    bleu = {name: scored.quality.bleu for name, scored in read_scores(demo_steps.SCORES).items()}
    page = (REPOSITORY / "docs" / "measurements" / "levels.md").read_text(encoding="utf-8")
    [other] = re.findall(r"^\| CTranslate2 int8, all heads \|.* \| (\d\d\.\d\d) \|", page, flags=re.MULTILINE)
    bleu["CTranslate2"] = float(other)
    whole = next(iter(NAMES))
    points = []
    for name, speed in speeds(1).items():
        lost = f"{bleu[name] - bleu[whole]:+.1f}".replace("-", "−")
        score = f"{bleu[name]:.1f}" if name == whole else lost
        points.append(Point(NAMES[name], speed, bleu[name], f"{speed:.1f}×, {score} BLEU", peer=name == "CTranslate2"))
    return draw(
        points,
        "One sentence a request, beam 4, int8",
        "times as fast as CTranslate2",
        "BLEU, mean of six kinds of text",
    )


if __name__ == "__main__":
    write_whole(Path(sys.argv[1]), picture() + "\n")
