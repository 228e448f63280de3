"""The commands of docs/operations.md that set up a service, run in their order: they do what the page says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.processes import REPOSITORY, environment

PAGE = REPOSITORY / "docs" / "operations.md"
SERVE = "hmc serve --config hmc.toml 2> hmc.log"
TOOLS = ("bash", "openssl", "curl", "grep")

Step = tuple[str, list[str]]
"""A command, and the lines that it prints; `…` stands for anything."""


def section() -> str:
    text = PAGE.read_text(encoding="utf-8")
    return text.split("## From nothing to a monitored service\n")[1].split("\n## ")[0]


def steps(kind: str, block: str) -> Iterator[Step]:
    """The commands of a code block. A file is a command that writes it."""
    if kind == "toml":
        name = block.splitlines()[0].removeprefix("# ")
        yield f"cat > {name} <<'END'\n{block}END", []
        return
    for each in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *shown = each.splitlines()
        yield command, shown


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with `hmc` and `python3` on the path."""
    for name, module in (("hmc", "-m hmc.cli "), ("python3", "")):
        script = tmp_path / "bin" / name
        script.parent.mkdir(exist_ok=True)
        script.write_text(f'#!/bin/sh\nexec {sys.executable} {module}"$@"\n')
        script.chmod(0o755)
    return tmp_path


class Shell:
    """Runs commands one after the other, as a shell that somebody types into."""

    def __init__(self, folder: Path) -> None:
        path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        kept = {"PATH": path, "COLUMNS": "120", "HMC_PORT": "0", "HMC_METRICS_PORT": "0"}
        self._environment = {k: v for k, v in environment(**kept).items() if k != "HMC_TOKEN"}
        self._state, self._folder = folder / "state", folder
        self.ports: dict[str, str] = {}
        self.server: subprocess.Popen[str] | None = None

    def run(self, command: str) -> str:
        """What the command prints. The next one finds its folder and variables."""
        for port, taken in self.ports.items():
            command = command.replace(f"localhost:{port}", f"localhost:{taken}")
        state = self._state
        before = f". {state}; cd $WORKING_FOLDER; " if state.exists() else ""
        after = f"\nended=$?; WORKING_FOLDER=$PWD; declare -p WORKING_FOLDER CHECKPOINT > {state} 2>&-; exit $ended"
        ran = subprocess.run(
            ["bash", "-c", before + command + after],
            cwd=self._folder, env=self._environment, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, f"{command}\n{ran.stdout}\n{ran.stderr}"
        return ran.stdout

    def serve(self) -> None:
        """Starts the server as the page says, but on free ports, which it reads off what the server prints."""
        service = self._folder / "service"
        with (service / "hmc.log").open("w") as log:
            self.server = subprocess.Popen(
                ["hmc", "serve", "--config", "hmc.toml", "--json"],
                cwd=service, env=self._environment, stdout=subprocess.PIPE, stderr=log, text=True,
                executable=self._folder / "bin" / "hmc",
            )  # fmt: skip
        assert self.server.stdout is not None
        said = self.server.stdout.readline()
        assert said, (service / "hmc.log").read_text()
        address = json.loads(said)
        self.ports = {"50051": address["address"].rpartition(":")[2], "9090": str(address["metrics_port"])}
        (service / "hmc.pid").write_text(str(self.server.pid))


@pytest.fixture
def shell(folder: Path) -> Iterator[Shell]:
    made = Shell(folder)
    yield made
    if made.server is not None:
        made.server.kill()
        made.server.communicate()


def matches(shown: list[str], printed: str) -> bool:
    """Whether every line that the page shows is printed, in this order."""
    pattern = ".*".join(re.escape(line.strip()).replace("…", ".*") for line in shown)
    return re.search(pattern, printed, re.DOTALL) is not None


@pytest.mark.slow
@pytest.mark.skipif(not all(map(shutil.which, TOOLS)), reason=f"needs {', '.join(TOOLS)}")
def test_the_page_sets_up_a_service(shell: Shell, folder: Path) -> None:
    blocks = re.findall(r"```(console|toml)\n(.*?)```", section(), re.DOTALL)
    ran = 0
    for command, shown in (step for kind, block in blocks for step in steps(kind, block)):
        ran += 1
        if command.startswith(SERVE):
            shell.serve()
            continue
        if command.startswith("grep -o"):  # the server has been told to stop
            assert shell.server is not None
            assert shell.server.wait(60) == 0
        printed = shell.run(command)
        expected = shown if "--print-config" not in command else ["port = 0  # HMC_PORT"]
        assert matches(expected, printed), f"{command}\nprinted:\n{printed}"
    assert ran >= 30
    lines = [json.loads(line) for line in (folder / "service" / "hmc.log").read_text().splitlines()]
    ended = [(line["rpc"].rpartition("/")[2], line["status"], line["caller"]) for line in lines if "status" in line]
    assert ("Translate", "OK", "website") in ended
    assert ("Translate", "UNAUTHENTICATED", "") in ended
    assert any("replaces" in line["message"] for line in lines)
    assert not any("hmc_" in line["message"] for line in lines if "settings" not in line["message"])  # no token


def test_lines_are_compared() -> None:
    assert matches(["a …", "c"], "x\na b\nc\n")
    assert not matches(["a …", "d"], "x\na b\nc\n")


def test_the_page_lists_every_alert() -> None:
    content = yaml.safe_load((REPOSITORY / "examples/monitoring/alerts.yaml").read_text(encoding="utf-8"))
    rules = [rule for group in content["groups"] for rule in group["rules"]]
    page = PAGE.read_text(encoding="utf-8")
    for rule in rules:
        row = f"| `{rule['alert']}` | {rule['labels']['severity']} | {rule['annotations']['action']} |"
        assert row in page
    assert len(re.findall(r"^\| `Hmc\w+` \|", page, re.MULTILINE)) == len(rules)
