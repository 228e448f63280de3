"""The frame of every experiment: errors in one line, the machine in the report, the report as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.support.worker import WorkerError
from hmc.artifact.errors import HmcError
from hmc.artifact.storage.files import write_whole
from hmc.benchmark.measure.machine import this_machine


def run_script(main: Callable[[], int | None]) -> None:
    """Runs `main` and exits with its status. Known errors are printed in one line."""
    try:
        status = main()
    except (HmcError, WorkerError) as error:
        sys.exit(f"error: {error}")
    sys.exit(status or 0)


def machine_report(devices: list[str] | None = None) -> dict[str, Any]:
    """Describes the machine as it is now, prints it in one line, and returns it for the report."""
    machine = this_machine(devices or ["cpu"])
    print(f"{machine}, load {machine.load_average:.1f}")
    return asdict(machine)


def write_report(path: Path | None, report: dict[str, Any]) -> None:
    """Writes the report as JSON if a path is given."""
    if path:
        write_whole(path, json.dumps(report, indent=1) + "\n")
