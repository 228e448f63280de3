"""The README gives the two commands that need nothing installed, and the Makefile has them."""

from pathlib import Path

import pytest


@pytest.mark.parametrize("command", ["demo", "test"])
def test_readme_gives_the_command(repository: Path, command: str) -> None:
    assert f"make {command}" in (repository / "README.md").read_text(encoding="utf-8")
    assert f"\n{command}:" in (repository / "Makefile").read_text(encoding="utf-8")
