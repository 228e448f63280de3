"""Running HMC from these sources in another process."""

from __future__ import annotations

import os
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
ROOTS = sorted(path.parent for path in REPOSITORY.glob("*/hmc"))
"""The folders that hold a part of the namespace `hmc`."""


def environment(**changes: str) -> dict[str, str]:
    """This process's environment, with all roots on the import path, and with `changes`."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, ROOTS)), **changes}
