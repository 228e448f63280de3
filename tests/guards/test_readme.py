"""The commands that the README and the documents give exist, and take the arguments given."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from tests.command import hmc_command
from tests.processes import REPOSITORY

DOCUMENTS = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
SHELL = {"|", ">", "<", "&", "2>", "&&", ";"}
"""Words that end the arguments of a command."""


@pytest.mark.parametrize("command", ["demo", "test"])
def test_readme_gives_the_command(repository: Path, command: str) -> None:
    assert f"make {command}" in (repository / "README.md").read_text(encoding="utf-8")
    assert f"\n{command}:" in (repository / "Makefile").read_text(encoding="utf-8")


def hmc_calls(document: Path) -> list[list[str]]:
    """The arguments of every `hmc …` in the code blocks of a document; calls that contain `…` are left out."""
    found = []
    for block in re.findall(r"```(?:console|sh|bash)?\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            call = re.match(r"(?:\$ )?(?:[A-Z_]+=\S+ )*hmc (.*)", line.strip())
            words = shlex.split(call[1], comments=True) if call else []
            end = next((number for number, word in enumerate(words) if word in SHELL), len(words))
            if words[:end] and "…" not in words[:end]:
                found.append(words[:end])
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=[str(path.relative_to(REPOSITORY)) for path in DOCUMENTS])
def test_commands_take_the_arguments_that_a_document_gives(document: Path) -> None:
    for words in hmc_calls(document):
        name, command, rest = "hmc", hmc_command(), list(words)
        if rest in (["--version"], ["--help"]):
            continue
        while hasattr(command, "get_command"):
            name = rest.pop(0)
            command = command.get_command(None, name)
            assert command is not None, shlex.join(words)
        command.make_context(name, rest)  # raises for an argument that the command does not take


def test_calls_are_found() -> None:
    assert len(hmc_calls(REPOSITORY / "README.md")) >= 5
