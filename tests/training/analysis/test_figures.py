"""Figures: drawn from the JSON alone, as SVG and PNG, the same bytes each time; closed heads are hatched."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from tests.tiny import tiny_checkpoint_at
from tests.training.analysis.helpers import LOSS, scored_bundle

from hmc.artifact.heads import HeadLayout
from hmc.training.analysis import (
    ablate,
    all_but_one,
    budgets,
    compare,
    correlate,
    cumulative,
    groups,
    importance,
    profile,
    survivors,
    trajectory,
)
from hmc.training.analysis.figures import draw, pruning
from hmc.training.analysis.measure import Settings
from hmc.training.analysis.ranking import RankBy
from hmc.training.analysis.result import Result, read_result, write_result
from hmc.training.analysis.subject import Subject, Text

BOTH = Settings(resamples=100)
THREE = HeadLayout.from_json({"encoder_self": [[0], []], "decoder_self": [[], [1]], "cross": [[2], []]})


def comparison(result: Result, folder: Path) -> Result:
    files = {name: write_result(result, folder / name) for name in ("baseline", "Random-18")}
    return compare.analyse(files)


def other_half(text: Text) -> list[Text]:
    return [
        Text(text.pairs[i::2], text.source.model_copy(update={"sha256": str(i), "name": f"{i}.tsv"})) for i in (0, 1)
    ]


Make = Callable[[Subject, Text, Path], Result]
CASES: dict[str, tuple[Make, Callable[[Result, Path], list[Path]], list[str]]] = {
    "importance": (
        lambda subject, text, _: importance.analyse(subject, text),
        draw.importance,
        ["importance", "importance_histogram"],
    ),
    "ablate": (lambda subject, text, _: ablate.analyse(subject, text, BOTH), draw.ablate, ["ablate"]),
    "ablate, loss": (lambda subject, text, _: ablate.analyse(subject, text, LOSS), draw.ablate, ["ablate"]),
    "all-but-one": (
        lambda subject, text, _: all_but_one.analyse(subject, text, BOTH),
        draw.all_but_one,
        ["all-but-one"],
    ),
    "groups": (
        lambda subject, text, _: groups.analyse(subject, text, RankBy().rank(subject, text), LOSS),
        draw.groups,
        ["groups"],
    ),
    "cumulative": (
        lambda subject, text, _: cumulative.analyse(subject, text, RankBy().rank(subject, text), BOTH),
        draw.cumulative,
        ["cumulative"],
    ),
    "profile": (
        lambda subject, text, _: profile.analyse(
            [Path("step-1"), Path("step-2")], lambda _: (subject, text, RankBy().rank(subject, text)), BOTH, [0.5]
        ),
        draw.profile,
        ["profile"],
    ),
    "correlate": (
        lambda subject, text, _: correlate.analyse(subject, other_half(text), "loss", LOSS),
        draw.correlate,
        ["correlate"],
    ),
    "compare importance": (
        lambda subject, text, folder: comparison(importance.analyse(subject, text), folder),
        draw.compare,
        ["compare"],
    ),
    "compare groups": (
        lambda subject, text, folder: comparison(
            groups.analyse(subject, text, RankBy().rank(subject, text), LOSS), folder
        ),
        draw.compare,
        ["compare"],
    ),
    "compare cumulative": (
        lambda subject, text, folder: comparison(
            cumulative.analyse(subject, text, RankBy().rank(subject, text), LOSS), folder
        ),
        draw.compare,
        ["compare"],
    ),
}


def survivors_of(subject: Subject, _: Text, folder: Path) -> Result:
    tiny_checkpoint_at(folder / "h3", layout=THREE, arch=subject.checkpoint.architecture)
    return survivors.analyse([subject.path, folder / "h3"])


def gates_of(_: Subject, __: Text, folder: Path) -> Result:
    points = [
        {"stage": stage, "step": step, "open": 20 - step, "unsettled": 2, "budget": 10, "open/cross": 5}
        for stage in (0, 2)
        for step in (1, 2)
    ]
    (folder / "trajectory.json").write_text(json.dumps(points))
    return trajectory.analyse({"one": folder / "trajectory.json", "two": folder / "trajectory.json"})


CASES["survivors"] = (survivors_of, pruning.survivors, ["survivors"])
CASES["trajectory"] = (gates_of, pruning.trajectory, ["trajectory"])


@pytest.mark.parametrize("case", CASES)
def test_figures_come_from_the_json_and_are_the_same_each_time(
    subject: Subject, text: Text, tmp_path: Path, case: str
) -> None:
    make, paint, names = CASES[case]
    drawn_alike(make(subject, text, tmp_path), paint, names, tmp_path)


def test_the_figure_of_scored_bundles(tiny_bundle: Path, tmp_path: Path) -> None:
    one = scored_bundle(tiny_bundle, tmp_path / "b", {"full": 30.0, "h12": 28.5, "h5": 20.0})
    drawn_alike(budgets.analyse({"one": one, "same": one}), pruning.budgets, ["budgets"], tmp_path)


def drawn_alike(made: Result, paint: Callable[[Result, Path], list[Path]], names: list[str], tmp_path: Path) -> None:
    """Draws what was read back from JSON twice, as SVG and PNG."""
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
    uneven, _ = draw.importance(importance.analyse(subject, text), tmp_path / "uneven")[:2]
    full, _ = draw.importance(importance.analyse(demo, demo_text), tmp_path / "full")[:2]
    assert b"<pattern" in uneven.read_bytes()
    assert b"<pattern" not in full.read_bytes()


def test_no_window_is_opened(subject: Subject, text: Text, tmp_path: Path) -> None:
    """Figures are made without pyplot, which is what would choose a backend with a window."""
    import subprocess
    import sys

    result = write_result(importance.analyse(subject, text), tmp_path)
    program = (
        "import sys; from pathlib import Path; from hmc.training.analysis.figures import draw;"
        "from hmc.training.analysis.result import read_result;"
        "draw.importance(read_result(Path(sys.argv[1])), Path(sys.argv[2]));"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    environment = {"PYTHONPATH": ":".join(p for p in sys.path if p), "MPLBACKEND": "TkAgg", "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program, str(result), str(tmp_path / "out")], check=True, env=environment)
