"""The examples with curl in docs/http.md, run against a server."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.processes import REPOSITORY

PAGE = REPOSITORY / "docs" / "http.md"
# What each answer must have, in the order of the page.
EXPECTED = [
    '"full:A dog runs."', '"bundleVersion":', '"full:A dog.|Ein Hund.|given"', "event: end", '"id":"2"',
    '"alternatives":["A dog runs. #1","A dog runs. #2"]', '"translatedText":["full:A dog.","full:A cat."]',
    '"name":"German"', '"confidence":0.0', "# TYPE hmc_calls_total counter", '"ok"', '"ok"',
]  # fmt: skip


def examples(page: Path) -> list[str]:
    """The commands with curl, with their continuation lines joined."""
    blocks = re.findall(r"```console\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    commands = [c for block in blocks for c in re.findall(r"^\$ ((?:.*\\\n)*.*)", block, re.MULTILINE)]
    return [command for command in commands if "curl" in command]


def test_the_examples_work(url: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed: the examples of docs/http.md are not run")
    commands = examples(PAGE)
    assert len(commands) == len(EXPECTED)
    for command, expected in zip(commands, EXPECTED, strict=True):
        checked = command.replace("curl ", "curl --silent --show-error --fail --max-time 30 ")
        done = subprocess.run(
            ["bash", "-c", checked], env={**os.environ, "HMC": url}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (command, done.stderr)
        assert expected in done.stdout, command
