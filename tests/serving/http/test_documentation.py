"""The examples with curl in docs/http.md, run against a server."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from tests.guards.pages import DOCS, steps

PAGE = DOCS / "http.md"
# What each answer must have, in the order of the page.
EXPECTED = [
    '"full:A dog runs."', '"bundleVersion":', '"full:A dog.|Ein Hund.|given"', "event: end", '"id":"2"',
    '"alternatives":["A dog runs. #1","A dog runs. #2"]', '"translatedText":["full:A dog.","full:A cat."]',
    '"name":"German"', '"confidence":0.0', "# TYPE hmc_calls_total counter", '"ok"', '"ok"',
]  # fmt: skip


def test_the_examples_work(url: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed: the examples of docs/http.md are not run")
    commands = [step.text for step in steps(PAGE) if "curl" in step.text]
    assert len(commands) == len(EXPECTED)
    for command, expected in zip(commands, EXPECTED, strict=True):
        checked = command.replace("curl ", "curl --silent --show-error --fail --max-time 30 ")
        done = subprocess.run(
            ["bash", "-c", checked], env={**os.environ, "HMC": url}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (command, done.stderr)
        assert expected in done.stdout, command
