"""Blocks of code in the pages that people read, and a shell that runs them in their order."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import yaml
from tests.processes import REPOSITORY, environment

DOCS = REPOSITORY / "docs"
README = REPOSITORY / "README.md"
COMMAND_S = 240
"""Seconds that a command may take."""
VARIABLES = "WORKING_FOLDER CHECKPOINT DATA"
"""What a command leaves to the next one."""
OPERATORS = {"|", ">", "<", "&", "2>", "&&", ";", "||"}
"""Words that end the arguments of a command."""


@dataclass(frozen=True)
class Step:
    """What a reader does with a block of code: types a command, writes a file, runs Python."""

    section: str
    """The heading above it; of the parts of a page that begin with `##`."""
    kind: str
    """`shell` or `python`."""
    text: str
    shown: tuple[str, ...] = ()
    """Lines that the page shows after the command; `…` stands for anything."""


def listed(entries: list[object]) -> list[str]:
    """The pages of a part of the site's navigation, in their order."""
    pages: list[str] = []
    for entry in entries:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            pages += listed(value) if isinstance(value, list) else [str(value)]
    return pages


def pages() -> list[Path]:
    """The README and every page of the site but its archive."""
    navigation = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    return [README, *(DOCS / name for name in listed([door for door in navigation if "Archive" not in door]))]


def steps(page: Path) -> list[Step]:
    """What the blocks of a page ask for. JSON, and TOML without a name, is there to be read alone."""
    found: list[Step] = []
    for part in re.split(r"^(?=## )", page.read_text(encoding="utf-8"), flags=re.MULTILINE):
        section = part.splitlines()[0].removeprefix("## ") if part.startswith("## ") else ""
        for kind, block in re.findall(r"^ *```(\w*)\n(.*?)^ *```$", part, re.DOTALL | re.MULTILINE):
            found += _steps(section, kind, textwrap.dedent(block))
    return found


def _steps(section: str, kind: str, block: str) -> Iterator[Step]:
    if kind == "python":
        yield Step(section, kind, block)
    elif kind == "toml" and (named := re.match(r"# (\S+\.toml)\n", block)):
        yield Step(section, "shell", f"cat > {named[1]} <<'END'\n{block}END")
    elif kind in ("console", "bash", "sh"):
        for command in re.findall(r"^\$ (.*?)(?=^\$ |\Z)", block, re.DOTALL | re.MULTILINE):
            [(typed, shown)] = re.findall(r"\A((?:.*\\\n)*.*)\n?((?:.*\n?)*)", command)
            yield Step(section, "shell", typed, tuple(shown.splitlines()))


def calls_of(step: Step) -> Iterator[tuple[str, list[str]]]:
    """What a command calls: `hmc`, a module of experiments, a target of make; and the arguments."""
    line = step.text.replace("\\\n", " ")
    for program, rest in re.findall(
        r"(?:^|[\s(])(hmc|python -m experiments[\w.]*|-m hmc\.cli|make)\s(.*)", re.sub(r"#\s.*", "", line)
    ):
        words = shlex.split(rest, comments=True)
        end = next((number for number, word in enumerate(words) if word in OPERATORS), len(words))
        if "…" not in words[:end]:
            yield program.removeprefix("python -m ").replace("-m hmc.cli", "hmc"), words[:end]


class Shell:
    """Runs commands one after the other, as somebody types them; the first in `folder`.

    `hmc` and `python3` are those of these tests. Ports that pages name are other, free ones.
    """

    def __init__(self, folder: Path, ports: Mapping[str, str]) -> None:
        """ports: a port as a page writes it → the one to use."""
        programs = folder / ".programs"
        programs.mkdir()
        for name, module in (("hmc", "-m hmc.cli "), ("python3", "")):
            script = programs / name
            script.write_text(f'#!/bin/sh\nexec {sys.executable} {module}"$@"\n')
            script.chmod(0o755)
        self._folder, self._state, self._ports = folder, folder / ".state", ports
        self._environment = environment(PATH=f"{programs}{os.pathsep}{os.environ['PATH']}", COLUMNS="120")
        self._environment.pop("HMC_TOKEN", None)
        self._started: list[subprocess.Popen[str]] = []

    def here(self, text: str) -> str:
        """A text of a page with the ports that are used."""
        for port, used in self._ports.items():
            text = re.sub(rf"\b{port}\b", used, text)
        return text

    def run(self, command: str) -> str:
        """What the command prints. The next one finds its folder and variables. What it starts with `&` goes on."""
        before = f". {self._state}; cd $WORKING_FOLDER; " if self._state.exists() else ""
        after = f"\nended=$?; WORKING_FOLDER=$PWD; declare -p {VARIABLES} > {self._state} 2>&-; exit $ended"
        said, complained = self._folder / ".said", self._folder / ".complained"
        with said.open("w") as out, complained.open("w") as err:
            process = self._start(before + self.here(command) + after, out, err)
            code = process.wait(COMMAND_S)
        assert code == 0, f"{command}\n{said.read_text()}\n{complained.read_text()}"
        return said.read_text()

    def start(self, command: str) -> str:
        """Starts a command that goes on, and returns its first line."""
        process = self._start(self.here(command), subprocess.PIPE, subprocess.DEVNULL)
        assert process.stdout is not None
        return process.stdout.readline()

    def _start(self, command: str, out: IO[str] | int, err: IO[str] | int) -> subprocess.Popen[str]:
        """bash, in a group of its own."""
        process = subprocess.Popen(
            ["bash", "-c", command], cwd=self._folder, env=self._environment, stdin=subprocess.DEVNULL,
            stdout=out, stderr=err, text=True, start_new_session=True,
        )  # fmt: skip
        self._started.append(process)
        return process

    def close(self) -> None:
        """Ends what still runs."""
        for process in self._started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


CALIBRATED = re.compile(r"\b[0-9a-f]{16}\b|(?<=BLEU )[\d.]+ \([-+][\d.]+\)")
"""A bundle's version, and its BLEU. They depend on the ranges that calibration measures, which processors compute in
other orders."""


def matches(shown: Sequence[str], printed: str, *, numbers: bool = True) -> bool:
    """Whether every line that a page shows is printed, in this order. numbers: these, or any in their places. A `…`
    and what is CALIBRATED may be anything."""
    text, at = " ".join(printed.split()), 0
    for piece in (" ".join(piece.split()) for line in shown for piece in CALIBRATED.sub("…", line).split("…")):
        pattern = re.escape(piece)
        if not numbers:
            pattern = re.sub(r"\d+(?:(?:,|\\\.)\d+)*", r"[\\d.,]+", pattern)
        found = re.compile(pattern).search(text, at)
        if found is None:
            return False
        at = found.end()
    return True
