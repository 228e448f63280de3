"""Whether the nodes of a run share its folder: the first process writes what the processes of all nodes read."""

from __future__ import annotations

import platform
import secrets
import time
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric

from hmc.artifact.errors import InvalidRequestError

WAIT_SECONDS = 90.0
"""How long a file of the first process may take to be seen: NFS remembers for a minute that a folder was missing."""
INTERVAL_SECONDS = 0.2


def check_shared(fabric: Fabric, out: Path, nodes: int) -> None:
    """Writes a file into the run folder `out`, makes the folder, and waits until every process has seen the file.

    All processes must call it; with one node it does nothing. Raises InvalidRequestError in all of them if one does not
    see the file: its node would else train another vocabulary, and resume from another state or none.
    """
    if nodes == 1:
        return
    number = torch.tensor(secrets.randbelow(2**62), device=fabric.device)
    marker = out / f".shared-{int(_gathered(fabric, number)[0]):016x}"
    if fabric.is_global_zero:
        out.mkdir(parents=True, exist_ok=True)
        marker.touch()
    fabric.barrier()
    seen = torch.tensor(int(_appears(marker)), device=fabric.device)
    blind = [rank for rank, value in enumerate(_gathered(fabric, seen).tolist()) if not value]
    if fabric.is_global_zero:
        marker.unlink()
    if blind:
        here = f"this is process {fabric.global_rank}, on {platform.node()}, and {out} is {out.absolute()} here"
        raise InvalidRequestError(
            f"process {', '.join(map(str, blind))} of {fabric.world_size} does not see what process 0 writes to {out} "
            f"({here}): a run on several nodes needs a folder that all of them share; choose such an --out"
        )


def _gathered(fabric: Fabric, value: torch.Tensor) -> torch.Tensor:
    found: Any = fabric.all_gather(value)
    return torch.as_tensor(found).flatten().cpu()


def _appears(marker: Path) -> bool:
    """Whether the file is there before the wait ends."""
    end = time.monotonic() + WAIT_SECONDS
    while not marker.exists():
        if time.monotonic() > end:
            return False
        time.sleep(INTERVAL_SECONDS)
    return True
