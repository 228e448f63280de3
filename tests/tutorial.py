"""Writes examples/tutorial.sh, the commands of docs/tutorial.md as a script: `python -m tests.tutorial FILE`."""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

from tests.guards.pages import DOCS, Step, steps

HEAD = """#!/usr/bin/env bash
# The tutorial (docs/tutorial.md) as a script, which `make docs` writes. Run it in an empty folder:
#
#   bash ../hmc/examples/tutorial.sh
#
# It installs HMC from its own folder into .venv there, and takes about ten minutes on two cores.
set -euo pipefail
HMC=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
trap 'kill $(jobs -p) 2>&- || true' EXIT
"""


def script() -> str:
    """The whole script."""
    found = steps(DOCS / "tutorial.md")
    parts = [(section, list(each)) for section, each in groupby(found, key=lambda step: step.section)]
    return HEAD + "".join(f"\necho '== {section}'\n{_section(each)}" for section, each in parts)


def _section(steps: list[Step]) -> str:
    """The server runs beside what follows, and ends with the section."""
    serves = any(step.text.startswith("hmc serve") for step in steps)
    return "".join(map(_line, steps)) + ("kill $(jobs -p) && wait\n" if serves else "")


def _line(step: Step) -> str:
    if step.kind == "python":
        return f"python3 - <<'END'\n{step.text}END\n"
    command = step.text.strip().replace("'../hmc[demo]'", '"$HMC[demo]"')
    if command.startswith("hmc serve"):
        command += " &"
    return f"{command}\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(script(), encoding="utf-8")
