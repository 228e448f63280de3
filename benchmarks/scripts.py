"""What every benchmark script does at its ends: sentences in, a report out, errors in one line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from workers import WorkerError

from hmc.artifact.errors import HmcError
from hmc.benchmark.machine import this_machine


def run_script(main: Callable[[], int | None]) -> None:
    """Runs `main` and ends with its status; a known error is one line."""
    try:
        status = main()
    except (HmcError, WorkerError) as error:
        sys.exit(f"error: {error}")
    sys.exit(status or 0)


def machine_report(devices: list[str] | None = None) -> dict[str, Any]:
    """The machine as it is now, printed in a line; all of it goes into the report."""
    machine = this_machine(devices or ["cpu"])
    print(f"{machine}, load {machine.load_average:.1f}")
    return asdict(machine)


def write_report(path: Path | None, report: dict[str, Any]) -> None:
    """Writes the report as JSON where a path was given."""
    if path:
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
