"""docs/heads.md and experiments/heads: commands that exist, figures that are there, tables written by the study."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from experiments.heads import run, tables
from experiments.support import marked
from tests.command import hmc_command
from tests.training.analysis.helpers import scored_bundle

from hmc.artifact import InvalidRequestError
from hmc.training.analysis.across import budgets
from hmc.training.analysis.common.result import Result, write_result
from hmc.training.analysis.masking import importance

Call = list[str]
MISSING = os.strerror(errno.ENOENT)
RECORDER = """#!{python}
import json, sys
from pathlib import Path
arguments = sys.argv[1:]
with open({log!r}, "a") as file:
    file.write(json.dumps(arguments) + "\\n")
for option in ("--out", "-o"):
    if option in arguments:
        folder = Path(arguments[arguments.index(option) + 1])
        folder.mkdir(parents=True, exist_ok=True)
        if arguments[0] == "analyze":
            (folder / f"{{arguments[1]}}.svg").touch()
"""


class Recorded:
    """`experiments.heads.run` in a folder of its own, with a stand-in for `hmc` that records its arguments."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place, self.log, self.hmc = place, place / "calls.jsonl", place / "hmc"
        self.hmc.write_text(RECORDER.format(python=sys.executable, log=str(self.log)))
        self.hmc.chmod(0o755)
        (place / "report.md").write_text("no tables\n")
        monkeypatch.chdir(place)

    def run(self, *arguments: str) -> None:
        run.main([*arguments, "--hmc", str(self.hmc), "--report", "report.md"])

    def calls(self) -> list[Call]:
        """Arguments of each call of `hmc`, in order. A bundle has its final name, not that of the incomplete one."""
        lines = self.log.read_text().splitlines()
        return [[argument.removesuffix(".part") for argument in json.loads(line)] for line in lines]


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> list[Call]:
    """All calls of `hmc` by the whole study where nothing exists yet."""
    place = tmp_path_factory.mktemp("heads")
    with pytest.MonkeyPatch.context() as monkeypatch:
        recorded = Recorded(place, monkeypatch)
        recorded.run()
        figures = {path.name for path in (place / "report").iterdir()}
        assert figures == {f"{name}.svg" for name in run.FIGURES}
        return recorded.calls()


def test_the_study_calls_hmc_with_arguments_that_it_takes(calls: list[Call]) -> None:
    assert {call[0] for call in calls} == {"train", "prune", "compile", "analyze"}
    for call in calls:
        name, command, words = "hmc", hmc_command(), list(call)
        while hasattr(command, "get_command"):
            name = words.pop(0)
            command = command.get_command(None, name)
        command.make_context(name, words)  # raises for an argument that the command does not take


def test_what_exists_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded(tmp_path, monkeypatch)
    for name in ("heads/baseline", "heads/random", "heads/important", "demo", "demo-tuned"):
        (tmp_path / "runs" / name / "final").mkdir(parents=True)
    (tmp_path / "runs" / "heads" / "seed1" / "h10").mkdir(parents=True)
    recorded.run("train", "--seeds", "1")
    (call,) = recorded.calls()
    assert call[:2] == ["prune", "runs/demo-tuned/final"]
    assert "--nested-steps" in call


def test_a_command_that_fails_ends_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded(tmp_path, monkeypatch)
    recorded.hmc.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(subprocess.CalledProcessError, match="returned non-zero exit status 3"):
        recorded.run("train")


def test_an_unknown_stage_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        Recorded(tmp_path, monkeypatch).run("tain")
    assert ended.value.code == 2
    assert "unknown stage tain; choose from train, methods, measure, tables" in capsys.readouterr().err


def test_commands_of_the_report_are_those_of_the_study(repository: Path, calls: list[Call]) -> None:
    report = (repository / "docs" / "heads.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```console\n(.*?)```", report, re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    named = [shlex.split(line.removeprefix("$ ")) for line in lines if line.startswith("$ hmc ")]
    assert len(named) >= 6
    for words in named:
        assert words[1:] in calls, f"not run by experiments.heads.run: {shlex.join(words)}"


def test_figures_are_there_small_and_shown(repository: Path) -> None:
    report = (repository / "docs" / "heads.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"!\[[^\]]+\]\(heads/([^)]+)\)", report))
    there = {path.name: path.stat().st_size for path in (repository / "docs" / "heads").iterdir()}
    assert shown == set(there)
    assert max(there.values()) < 100_000


def test_tables_of_the_report_are_known_and_written(repository: Path) -> None:
    report = (repository / "docs" / "heads.md").read_text(encoding="utf-8")
    found = {match[2]: match[0] for match in marked.MARKED.finditer(report)}
    assert set(found) == set(tables.TABLES)
    for name, text in found.items():
        assert "| ---" in text, f"table {name} has not been written yet"
    assert "{{" not in report


def test_a_table_is_filled_from_json_and_a_missing_one_is_named(tiny_bundle: Path, tmp_path: Path) -> None:
    report = "a\n<!-- table: headmask -->\nold\n<!-- end -->\nb\n"
    text, problems = tables.fill(report, tmp_path)
    assert text == report
    assert problems == [f"table headmask: {tmp_path}/compare-importance/compare.json: cannot be read: {MISSING}"]

    scored = scored_bundle(tiny_bundle, tmp_path / "bundle", {"full": 30.0, "h12": 28.5})
    write_result(budgets.analyse({"HeadMask": scored}), tmp_path / "headmask")
    spreads = {"full": importance.spread(np.array([1.0, 3.0])), "h12": importance.spread(np.array([1.0, 2.0]))}
    systems = {name: {"all": spread} for name, spread in spreads.items()}
    compared = Result(command="compare", data={"analysis": "importance", "systems": systems})
    write_result(compared, tmp_path / "compare-importance")
    text, problems = tables.fill(report, tmp_path)
    assert not problems
    lines = text.splitlines()
    assert lines[:2] == ["a", "<!-- table: headmask -->"]
    assert "| full | 30.00 | – | – | 2.000 | 1.0000 | 1.00 | 0.50 |" in lines
    assert "| h12 | 28.50 | -1.50 (-2.00 to -1.00) | 0.010 | 1.500 | 0.2500 | 0.25 | 0.33 |" in lines
    assert lines[-2:] == ["<!-- end -->", "b"]
    assert tables.fill(text, tmp_path) == (text, []), "written again from the same data it is the same"

    with pytest.raises(InvalidRequestError, match="table heads: unknown; there are headmask"):
        tables.fill("<!-- table: heads -->\n<!-- end -->", tmp_path)
