"""docs/heads.md and recipes/heads.sh: commands that exist, figures that are there, tables written by the script."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
import pytest
from tests.training.analysis.helpers import scored_bundle
from typer.main import get_command

from hmc.artifact.errors import InvalidRequestError
from hmc.cli.main import build
from hmc.training.analysis import budgets, importance
from hmc.training.analysis.result import Result, write_result

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


class Script:
    """recipes/heads.sh in a folder of its own, with a stand-in for `hmc` that writes its arguments down."""

    def __init__(self, repository: Path, place: Path) -> None:
        self.path, self.place, self.log = repository / "recipes" / "heads.sh", place, place / "calls.jsonl"
        recorder = place / "hmc"
        recorder.write_text(RECORDER.format(python=sys.executable, log=str(self.log)))
        recorder.chmod(0o755)
        self.environment = {"PATH": os.environ["PATH"], "HMC": str(recorder), "PYTHON": shutil.which("true") or "true"}

    def run(self, *stages: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs stages; variables are the script's."""
        command, environment = ["sh", str(self.path), *stages], {**self.environment, **variables}
        return subprocess.run(command, cwd=self.place, env=environment, capture_output=True, text=True, check=False)

    def calls(self) -> list[Call]:
        """What `hmc` was asked, in order. A bundle is made under another name and moved when it is whole."""
        lines = self.log.read_text().splitlines()
        return [[argument.removesuffix(".part") for argument in json.loads(line)] for line in lines]


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> list[Call]:
    """What the whole script asks of `hmc` where nothing is there yet."""
    script = Script(Path(__file__).resolve().parents[2], tmp_path_factory.mktemp("heads"))
    ran = script.run()
    assert ran.returncode == 0, ran.stderr
    return script.calls()


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    """recipes/heads_tables.py."""
    path = Path(__file__).resolve().parents[2] / "recipes" / "heads_tables.py"
    spec = importlib.util.spec_from_file_location("heads_tables", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_script_calls_hmc_with_arguments_that_it_takes(calls: list[Call]) -> None:
    assert {call[0] for call in calls} == {"train", "prune", "compile", "analyze"}
    for call in calls:
        name, command, words = "hmc", cast(Any, get_command(build())), list(call)
        while hasattr(command, "get_command"):
            name = words.pop(0)
            command = command.get_command(None, name)
        command.make_context(name, words)  # raises for what the command does not take


def test_what_is_there_is_not_made_again(repository: Path, tmp_path: Path) -> None:
    script = Script(repository, tmp_path)
    for name in ("heads/baseline", "heads/random", "heads/important", "demo", "demo-tuned"):
        (tmp_path / "runs" / name / "final").mkdir(parents=True)
    (tmp_path / "runs" / "heads" / "seed1" / "h10").mkdir(parents=True)
    assert script.run("train", SEEDS="1").returncode == 0
    (call,) = script.calls()
    assert call[:2] == ["prune", "runs/demo-tuned/final"]
    assert "--nested-steps" in call
    ran = script.run("tain")
    assert ran.returncode == 2
    assert ran.stderr == "heads.sh: unknown stage tain; choose from train, methods, measure, tables\n"


def test_commands_of_the_report_are_those_of_the_script(repository: Path, calls: list[Call]) -> None:
    report = (repository / "docs" / "heads.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```console\n(.*?)```", report, re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    named = [shlex.split(line.removeprefix("$ ")) for line in lines if line.startswith("$ hmc ")]
    assert len(named) >= 6
    for words in named:
        assert words[1:] in calls, f"not in recipes/heads.sh: {shlex.join(words)}"


def test_figures_are_there_small_and_shown(repository: Path) -> None:
    report = (repository / "docs" / "heads.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"!\[[^\]]+\]\(heads/([^)]+)\)", report))
    there = {path.name: path.stat().st_size for path in (repository / "docs" / "heads").iterdir()}
    assert shown == set(there)
    assert max(there.values()) < 100_000


def test_tables_of_the_report_are_known_and_written(repository: Path, tables: ModuleType) -> None:
    report = (repository / "docs" / "heads.md").read_text(encoding="utf-8")
    found = {match[2]: match[0] for match in tables.MARKED.finditer(report)}
    assert set(found) == set(tables.TABLES)
    for name, text in found.items():
        assert "| ---" in text, f"table {name} has not been written yet"
    assert "{{" not in report


def test_a_table_is_filled_from_json_and_a_missing_one_is_named(
    tables: ModuleType, tiny_bundle: Path, tmp_path: Path
) -> None:
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
