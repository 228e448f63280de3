"""Models by their name on the hub: what is said without a network, and what is no name."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.processes import environment

from hmc.artifact import InvalidRequestError
from hmc.pipelines.importing import located

PROGRAM = """
import sys
if sys.argv[1] == "without":
    sys.modules["huggingface_hub"] = None
from hmc.artifact.errors import HmcError
from hmc.pipelines.importing import located
try:
    print(located("Helsinki-NLP/opus-mt-en-de", "abc"))
except HmcError as error:
    print(type(error).__name__, error)
"""


def said(argument: str, **variables: str) -> str:
    """What a process of its own says, as huggingface_hub reads its variables when it is imported."""
    command = [sys.executable, "-c", PROGRAM, argument]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=environment() | variables)
    return ran.stdout


def test_a_path_is_itself(tmp_path: Path) -> None:
    assert located(str(tmp_path)).path == tmp_path
    with pytest.raises(InvalidRequestError, match="revision: it is for a name on the Hugging Face hub"):
        located(str(tmp_path), "main")


@pytest.mark.parametrize("name", ["missing", "a/b/c", "../x", "/missing/folder", "a/"])
def test_what_is_neither_path_nor_name(name: str) -> None:
    with pytest.raises(
        InvalidRequestError, match="no such file or folder here; give the path of a model, or its name on the Hugging"
    ):
        located(name)


def test_without_a_network_one_line_says_so(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    with socket.socket() as held:  # bound, and never listening: every connection is refused
        held.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{held.getsockname()[1]}"
        for variables in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": endpoint}):
            answer = said("with", HF_HOME=str(tmp_path), **variables)
            assert answer.startswith("UnavailableError Helsinki-NLP/opus-mt-en-de: no such folder here, and the hub")
            assert "give its folder" in answer


def test_without_the_package_its_extra_is_named() -> None:
    assert "FailedPreconditionError" in (answer := said("without"))
    assert ".[hub]'" in answer
