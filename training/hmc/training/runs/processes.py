"""Runs of several processes: random numbers of each process, and which process reports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from hmc.artifact.errors import HmcError


def seed_process(fabric: Fabric, seed: int) -> None:
    """Seeds PyTorch differently in every process but the first, whose random numbers go on.

    Call it after the weights are initialised: weights must be equal in all processes, dropout and sampled gates must
    differ.
    """
    if fabric.global_rank:
        torch.manual_seed(seed + 1_000_003 * fabric.global_rank)


def random_states(fabric: Fabric) -> dict[str, Tensor]:
    """Returns the states of the random-number generators of all processes: `cpu`, `cpu.1`, …, `cuda`, `cuda.1`, …

    All processes must call it; all get the same result.
    """
    states = {"cpu": torch.get_rng_state()}
    if fabric.device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state()
    if fabric.world_size == 1:
        return states
    gathered: dict[str, Tensor] = {}
    for name, state in states.items():
        rows: Any = fabric.all_gather(state.to(fabric.device))
        for rank, row in enumerate(rows.cpu()):
            gathered[_name(name, rank)] = row.contiguous()
    return gathered


def restore_random_state(states: dict[str, Tensor], rank: int) -> None:
    """Sets the generators of this process to their states in a result of `random_states`."""
    torch.set_rng_state(states[_name("cpu", rank)])
    if _name("cuda", rank) in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states[_name("cuda", rank)])


@contextmanager
def first_process_first(fabric: Fabric) -> Iterator[None]:
    """Runs the body in the first process, and then in the others. If it fails in the first one, it fails in all.

    All processes must enter it. In the others it raises HmcError with the first one's message.
    """
    if fabric.global_rank and (problem := fabric.broadcast(None)):
        raise HmcError(problem)
    try:
        yield
    except Exception as error:
        if fabric.is_global_zero:
            fabric.broadcast(f"the first process stopped: {str(error) or type(error).__name__}")
        raise
    if fabric.is_global_zero:
        fabric.broadcast(None)


def is_first_process() -> bool:
    """True in the only process, or the first of several: the one that prints results."""
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0


def leave_processes() -> None:
    """Leaves the process group. At interpreter exit its threads might otherwise use objects that are already gone."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def saved_processes(states: dict[str, Tensor]) -> int:
    """Returns the number of processes of a result of `random_states`."""
    return sum(name.partition(".")[0] == "cpu" for name in states)


def _name(device: str, rank: int) -> str:
    return f"{device}.{rank}" if rank else device
