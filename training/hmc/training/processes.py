"""Random numbers of a run in several processes: apart from each other, and saved together."""

from __future__ import annotations

from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor


def seed_process(fabric: Fabric, seed: int) -> None:
    """Gives every process but the first random numbers of its own; the first goes on with those it has.

    Call it when the weights are made: they must be equal everywhere, dropout and sampled gates must not.
    """
    if fabric.global_rank:
        torch.manual_seed(seed + 1_000_003 * fabric.global_rank)


def random_states(fabric: Fabric) -> dict[str, Tensor]:
    """State of the random-number generators of all processes: `cpu`, `cpu.1`, … and the same for `cuda`.

    All processes must call it, and get the same.
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
    """Sets this process's generators to what `random_states` found."""
    torch.set_rng_state(states[_name("cpu", rank)])
    if _name("cuda", rank) in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states[_name("cuda", rank)])


def is_first_process() -> bool:
    """True in the process that prints results: the only one, or the first of several."""
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0


def leave_processes() -> None:
    """Leaves the process group; left to the interpreter's exit, its threads may outlive what they use."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def saved_processes(states: dict[str, Tensor]) -> int:
    """Number of processes whose states these are."""
    return sum(name.partition(".")[0] == "cpu" for name in states)


def _name(device: str, rank: int) -> str:
    return f"{device}.{rank}" if rank else device
