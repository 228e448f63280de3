"""Where no folder for temporary files can be written, every command says so in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.processes import environment
from tests.serving.certificates import make_certificate
from tests.support.files import write_lines
from tests.support.recipes import small_recipe

NOWHERE = """
import sys, tempfile
tempfile._candidate_tempdir_list = lambda: ["/nowhere/tmp"]
from hmc.cli.main import main
sys.argv = ["hmc", *sys.argv[1:]]
main()
"""


def without_folder(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs `hmc WORDS…` where no temporary folder can be had."""
    command = [sys.executable, "-c", NOWHERE, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment(), timeout=600)


SAID = "hmc: No usable temporary directory found in ['/nowhere/tmp']; set TMPDIR to a folder that can be written"


@pytest.mark.parametrize("command", ["compile", "bench", "demo", "train", "serve", "serve with TLS"])
def test_it_is_said(command: str, tiny_checkpoint: Path, tiny_bundle: Path, src: Path, tmp_path: Path) -> None:
    words: dict[str, list[str | Path]] = {
        "compile": ["compile", tiny_checkpoint, "-o", tmp_path / "bundle"],
        "bench": ["bench", tiny_bundle, "--source", src, "--rounds", "1", "--batch", "1"],
        "demo": ["demo", "--checkpoint", tiny_checkpoint, "-o", tmp_path / "demo"],
        "train": ["train", tmp_path / "recipe.json", "-o", tmp_path / "run"],
        "serve": ["serve", tiny_bundle, "--port", "0", "--fronts", "2"],
        "serve with TLS": ["serve", tiny_bundle, "--port", "0", "--http-port", "0"],
    }
    if command == "train":
        english, german = (write_lines(tmp_path / f"a.{side}", ["A man runs."] * 40) for side in ("en", "de"))
        (tmp_path / "recipe.json").write_text(small_recipe(f"{english} {german}").model_dump_json())
    if command == "serve with TLS":
        cert, key = make_certificate(tmp_path)
        words[command] += ["--tls-cert", cert, "--tls-key", key]
    ran = without_folder(*words[command])
    assert ran.returncode == 2, ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.stderr.splitlines()[-1] == SAID
