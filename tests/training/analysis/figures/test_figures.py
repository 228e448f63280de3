"""Figures: drawn from the JSON alone, as SVG and PNG, the same bytes each time; closed heads are hatched."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from matplotlib.figure import Figure
from tests.tiny import tiny_checkpoint_at
from tests.training.analysis.helpers import LOSS, scored_bundle, two_texts

from hmc.artifact import HeadLayout
from hmc.training.analysis.across import budgets, compare, correlate, survivors, trajectory
from hmc.training.analysis.common.measure import Settings
from hmc.training.analysis.common.result import Result, read_result, write_result
from hmc.training.analysis.common.subject import Subject, Text
from hmc.training.analysis.figures import charts, masking, pruning
from hmc.training.analysis.masking import ablate, all_but_one, cumulative, groups, importance, profile
from hmc.training.analysis.masking.ranking import RankBy

BOTH = Settings(resamples=100)
THREE = HeadLayout.from_json({"encoder_self": [[0], []], "decoder_self": [[], [1]], "cross": [[2], []]})


def comparison(result: Result[Any], folder: Path) -> Result[Any]:
    files = {name: write_result(result, folder / name) for name in ("baseline", "Random-18")}
    return compare.analyse(files)


Make = Callable[[Subject, Text, Path], Result[Any]]
Paint = Callable[[Result[Any], Path], list[Path]]
CASES: dict[str, tuple[Make, Paint, list[str]]] = {
    "importance": (
        lambda subject, text, _: importance.analyse(subject, text),
        masking.draw_importance,
        ["importance", "importance_histogram"],
    ),
    "ablate": (lambda subject, text, _: ablate.analyse(subject, text, BOTH), masking.draw_ablate, ["ablate"]),
    "ablate, loss": (lambda subject, text, _: ablate.analyse(subject, text, LOSS), masking.draw_ablate, ["ablate"]),
    "all-but-one": (
        lambda subject, text, _: all_but_one.analyse(subject, text, BOTH),
        masking.draw_all_but_one,
        ["all-but-one"],
    ),
    "groups": (
        lambda subject, text, _: groups.analyse(subject, text, RankBy().rank(subject, text), LOSS),
        masking.draw_groups,
        ["groups"],
    ),
    "cumulative": (
        lambda subject, text, _: cumulative.analyse(subject, text, RankBy().rank(subject, text), BOTH),
        masking.draw_cumulative,
        ["cumulative"],
    ),
    "profile": (
        lambda subject, text, _: profile.analyse(
            [Path("step-1"), Path("step-2")], lambda _: (subject, text, RankBy().rank(subject, text)), BOTH, [0.5]
        ),
        masking.draw_profile,
        ["profile"],
    ),
    "correlate": (
        lambda subject, text, folder: correlate.analyse(subject, two_texts(text, folder), "loss", LOSS),
        masking.draw_correlate,
        ["correlate"],
    ),
    "compare importance": (
        lambda subject, text, folder: comparison(importance.analyse(subject, text), folder),
        masking.draw_compare,
        ["compare"],
    ),
    "compare groups": (
        lambda subject, text, folder: comparison(
            groups.analyse(subject, text, RankBy().rank(subject, text), LOSS), folder
        ),
        masking.draw_compare,
        ["compare"],
    ),
    "compare cumulative": (
        lambda subject, text, folder: comparison(
            cumulative.analyse(subject, text, RankBy().rank(subject, text), LOSS), folder
        ),
        masking.draw_compare,
        ["compare"],
    ),
}


def survivors_of(subject: Subject, _: Text, folder: Path) -> Result[Any]:
    tiny_checkpoint_at(folder / "h3", layout=THREE, arch=subject.checkpoint.architecture)
    return survivors.analyse([subject.path, folder / "h3"])


def gates_of(_: Subject, __: Text, folder: Path) -> Result[Any]:
    points = [
        {"stage": stage, "step": step, "open": 20 - step, "unsettled": 2, "budget": 10, "open/cross": 5}
        for stage in (0, 2)
        for step in (1, 2)
    ]
    (folder / "trajectory.json").write_text(json.dumps(points))
    return trajectory.analyse({"one": folder / "trajectory.json", "two": folder / "trajectory.json"})


CASES["survivors"] = (survivors_of, pruning.draw_survivors, ["survivors"])
CASES["trajectory"] = (gates_of, pruning.draw_trajectory, ["trajectory"])


@pytest.mark.parametrize("case", CASES)
def test_figures_come_from_the_json_and_are_the_same_each_time(
    subject: Subject, text: Text, tmp_path: Path, case: str
) -> None:
    make, paint, names = CASES[case]
    check_figures(make(subject, text, tmp_path), paint, names, tmp_path)


def test_the_figure_of_scored_bundles(tiny_bundle: Path, tmp_path: Path) -> None:
    one = scored_bundle(tiny_bundle, tmp_path / "b", {"full": 30.0, "h12": 28.5, "h5": 20.0})
    check_figures(budgets.analyse({"one": one, "same": one}), pruning.draw_budgets, ["budgets"], tmp_path)


def check_figures(
    made: Result[Any], paint: Callable[[Result[Any], Path], list[Path]], names: list[str], tmp_path: Path
) -> None:
    """Draws a result twice after reading it back from JSON. Both SVG and PNG must have the same bytes each time."""
    stored = read_result(write_result(made, tmp_path / "data"))
    first, second = paint(stored, tmp_path / "first"), paint(stored, tmp_path / "second" / "deeper")
    assert sorted(path.name for path in first) == sorted(f"{n}.{suffix}" for n in names for suffix in ("svg", "png"))
    for one, again in zip(first, second, strict=True):
        assert one.read_bytes() == again.read_bytes()
        if one.suffix == ".png":
            assert one.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
        else:
            assert ET.parse(one).getroot().tag == "{http://www.w3.org/2000/svg}svg"
            assert not re.search(rb"20\d\d-\d\d-\d\d|Matplotlib v", one.read_bytes()), "no date, no version"


def test_closed_heads_are_hatched(subject: Subject, text: Text, demo: Subject, demo_text: Text, tmp_path: Path) -> None:
    uneven, _ = masking.draw_importance(importance.analyse(subject, text), tmp_path / "uneven")[:2]
    full, _ = masking.draw_importance(importance.analyse(demo, demo_text), tmp_path / "full")[:2]
    assert b"<pattern" in uneven.read_bytes()
    assert b"<pattern" not in full.read_bytes()


def test_no_window_is_opened(subject: Subject, text: Text, tmp_path: Path) -> None:
    """Figures are drawn without pyplot, which would choose a backend that opens windows."""
    import subprocess
    import sys

    result = write_result(importance.analyse(subject, text), tmp_path)
    program = (
        "import sys; from pathlib import Path; from hmc.training.analysis.figures import masking;"
        "from hmc.training.analysis.common.result import read_result;"
        "masking.draw_importance(read_result(Path(sys.argv[1])), Path(sys.argv[2]));"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    environment = {"PYTHONPATH": ":".join(p for p in sys.path if p), "MPLBACKEND": "TkAgg", "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program, str(result), str(tmp_path / "out")], check=True, env=environment)


def test_negative_importance_is_in_the_histogram() -> None:
    """Signed values: masking the head would lower the loss."""
    for values in ([-0.5, 0.2, 0.4], [-0.5, -0.2], [0.0, 0.0]):
        axes = Figure().subplots()
        charts.histogram(axes, {"a": values})
        [outline] = axes.patches
        assert outline.get_data().values.sum() == len(values)  # type: ignore[attr-defined]
