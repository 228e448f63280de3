"""One optimiser update: gradient accumulation, several processes, mixed precision. The loop is the caller's."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from hmc.artifact.errors import DeviceUnavailableError, InvalidRequestError
from hmc.training.allocator import keep_freed_memory
from hmc.training.batches import Batch
from hmc.training.headmask import HeadMask
from hmc.training.objective import cross_entropy_sum, learning_rate
from hmc.training.processes import leave_processes
from hmc.training.recipe import RunSection, TrainSection
from hmc.training.transformer import Transformer


class SummedLoss(nn.Module):
    """Ids of a batch → summed cross-entropy, as one module so that distributed wrappers see every parameter."""

    def __init__(self, model: Transformer, label_smoothing: float) -> None:
        super().__init__()
        self.model, self.label_smoothing = model, label_smoothing

    def forward(self, source: Tensor, target_in: Tensor, target_out: Tensor) -> Tensor:
        """Shapes as in `Batch` → scalar."""
        batch = Batch(source, target_in, target_out)
        states = self.model(batch.source, batch.target_in)
        return cross_entropy_sum(self.model, states, batch, self.label_smoothing)[0]


@dataclass(frozen=True)
class Update:
    """What an update did: `loss` in nats per target token, target `tokens` over all processes, gradient norm, rate."""

    loss: float
    tokens: int
    gradient_norm: float
    rate: float


def make_fabric(run: RunSection) -> Fabric:
    """Fabric for the run's device, precision and processes, launched.

    Raises DeviceUnavailableError when cuda is asked for and absent, and InvalidRequestError when a launcher (torchrun)
    started another number of processes than the run has.
    """
    check_processes(run)
    if run.device == "cuda" and not torch.cuda.is_available():
        raise DeviceUnavailableError(
            "run.device = cuda, but PyTorch sees no CUDA device; use device = 'cpu' or install a CUDA build"
        )
    keep_freed_memory()
    fabric = Fabric(accelerator=run.device, precision=run.precision, devices=run.devices, num_nodes=run.nodes)
    fabric.launch()
    if fabric.world_size > 1:
        atexit.register(leave_processes)
    return fabric


def check_processes(run: RunSection) -> None:
    """Raises InvalidRequestError where each process of a launcher would be a run of its own in the same folder."""
    started, wanted = os.environ.get("WORLD_SIZE", "1"), run.devices * run.nodes
    if started not in ("1", str(wanted)):
        raise InvalidRequestError(
            f"{started} processes were started (WORLD_SIZE), but the run is of {wanted} (run.devices × run.nodes). "
            "hmc train: give --set run.devices=N, the processes a node, and run.nodes; hmc prune: start it without "
            "torchrun"
        )


class Updater:
    """Holds model, optimiser and batches; `update()` advances all three by one step."""

    def __init__(
        self,
        fabric: Fabric,
        model: Transformer,
        optimizer: torch.optim.Optimizer,
        batches: Iterator[Batch],
        settings: TrainSection,
        headmask: HeadMask | None = None,
    ) -> None:
        """headmask: masks heads in every update; without it the model's own gates are in force."""
        self.fabric, self.transformer, self.settings, self.headmask = fabric, model, settings, headmask
        self.loss, self.optimizer = fabric.setup(SummedLoss(model, settings.label_smoothing), optimizer)
        self.batches = batches

    def update(
        self, step: int, penalty: Callable[[], Tensor] | None = None, rates: dict[str, float] | None = None
    ) -> Update:
        """Update number `step` (from 1): gradient of (summed loss / all target tokens) + penalty.

        rates: learning rates of parameter groups by their `name`, where they differ from the schedule.
        """
        fabric, pad = self.fabric, self.transformer.arch.pad_id
        batches = [next(self.batches).to(fabric.device) for _ in range(self.settings.accumulate)]
        tokens = torch.stack([b.target_out.ne(pad).sum() for b in batches]).sum()
        total = int(self._all_sum(tokens))
        rate = learning_rate(step, self.settings)
        for group in self.optimizer.param_groups:
            group["lr"] = (rates or {}).get(group.get("name", ""), rate)
        self.optimizer.zero_grad()
        with self.headmask.applied(fabric, step, batches) if self.headmask else nullcontext():
            summed = self._backward(batches, total, penalty)
        limit = self.settings.clip_norm or float("inf")
        norm = fabric.clip_gradients(self.loss, self.optimizer, max_norm=limit, error_if_nonfinite=False)
        self.optimizer.step()
        return Update(
            float(self._all_sum(summed)) / total, total, float(norm) if norm is not None else float("nan"), rate
        )

    def _backward(self, batches: list[Batch], total: int, penalty: Callable[[], Tensor] | None) -> Tensor:
        """Gradient of (summed loss / total tokens) + penalty; returns this process's summed loss."""
        fabric, summed = self.fabric, torch.zeros((), device=self.fabric.device)
        for number, batch in enumerate(batches):
            last = number == len(batches) - 1
            with fabric.no_backward_sync(self.loss, enabled=not last):
                loss = self.loss(batch.source, batch.target_in, batch.target_out)
                objective = loss * (fabric.world_size / total)
                if last and penalty is not None:
                    objective = objective + penalty()
                fabric.backward(objective)
            summed += loss.detach()
        return summed

    def _all_sum(self, value: Tensor) -> Tensor:
        if self.fabric.world_size == 1:
            return value
        reduced: Any = self.fabric.all_reduce(value, reduce_op="sum")
        return torch.as_tensor(reduced)


def make_optimizer(groups: list[dict[str, Any]], settings: TrainSection) -> torch.optim.Adam:
    """Adam as in the papers; decoupled weight decay when asked for."""
    return torch.optim.Adam(
        groups,
        lr=settings.learning_rate,
        betas=settings.adam_betas,
        eps=settings.adam_epsilon,
        weight_decay=settings.weight_decay,
        decoupled_weight_decay=settings.weight_decay > 0,
        fused=True,
    )
