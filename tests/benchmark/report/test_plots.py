"""The Pareto plot."""

import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from tests.benchmark import fakes

from hmc.artifact import PRECISIONS, HmcError, InvalidRequestError
from hmc.benchmark.report import plots


def test_png_and_svg_are_written_the_same_each_time(tmp_path: Path) -> None:
    report = fakes.report()
    png, svg = plots.write_pareto(report, tmp_path / "new" / "first.run")
    assert (png.name, svg.name) == ("first.run.png", "first.run.svg")
    assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert ET.parse(svg).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    again = plots.write_pareto(report, tmp_path / "second")
    assert [path.read_bytes() for path in again] == [png.read_bytes(), svg.read_bytes()]


def test_points_have_the_interval_around_the_references_bleu() -> None:
    full, half, quantised = plots.points(fakes.report())
    assert (full.bleu_low, full.bleu_high) == (30, 30)
    assert (half.bleu_low, half.bleu, half.bleu_high) == pytest.approx((29, 29.5, 30.2))
    assert (quantised.p50_ms, quantised.bytes, quantised.precision) == (8, 7 * 2**20, "int8")
    assert [p.speedup for p in (full, half, quantised)] == pytest.approx([1, 20 / 15, 2.5])


def test_every_precision_has_a_style() -> None:
    """The plot leaves out levels of a precision without one."""
    assert plots.STYLES.keys() == {*PRECISIONS, plots.PEER}


def test_a_peer_is_a_point_beside_the_line_of_the_levels(tmp_path: Path) -> None:
    report = fakes.whole_report()
    peer = plots.points(report)[-1]
    assert (peer.name, peer.precision, peer.bytes) == ("Peer", plots.PEER, 0)
    _, svg = plots.write_pareto(report, tmp_path / "plot")
    text = svg.read_text()
    assert "<!-- Peer -->" in text
    assert f"<!-- {plots.PEER} -->" in text


def point(name: str, p50_ms: float, bleu: float) -> plots.Point:
    return plots.Point(name, "fp32", p50_ms, bleu, bleu, bleu, 1, speedup=10 / p50_ms)


def test_frontier_leaves_out_what_another_level_beats() -> None:
    found = [point("best", 9, 30), point("beaten", 8, 20), point("fast", 2, 25), point("equal", 9, 30)]
    assert [p.name for p in plots.frontier(found)] == ["fast", "best"]


def test_a_report_without_quality_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="give references with --reference FILE"):
        plots.write_pareto(fakes.report(with_quality=False), tmp_path / "plot")


def test_a_missing_matplotlib_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(HmcError, match=r"plots need matplotlib: .*pip install '\.\[plot\]'"):
        plots.require_matplotlib()
