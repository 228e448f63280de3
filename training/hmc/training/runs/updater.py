"""Optimiser updates: gradient accumulation, several processes, mixed precision. The caller writes the loop."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, cast

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from hmc.artifact.errors import DeviceUnavailableError, InvalidRequestError
from hmc.training.data.batches import Batch
from hmc.training.data.transfer import to_device
from hmc.training.distillation.objective import Lesson
from hmc.training.distillation.teacher import NOTHING, Distillation
from hmc.training.model.cpu.memory import configure_memory
from hmc.training.model.transformer import Transformer
from hmc.training.runs.loss import SummedLoss
from hmc.training.runs.processes import leave_processes
from hmc.training.runs.recipe import RunSection, TrainSection
from hmc.training.runs.tally import Tally

Masking = Callable[[Fabric, int, Sequence[Batch]], AbstractContextManager[object]]
"""(fabric, step, batches) → a context in which the model's masks are those of update `step`, made of `batches`."""

Masks = Callable[[], None]
"""Puts masks on the model before a forward pass."""

OLDEST_COMPILED = (7, 0)
"""Oldest compute capability that Triton, in which `torch.compile` writes kernels, supports."""


@dataclass(frozen=True)
class Update:
    """Results of one update. Numbers stay on the device until they are read: only reading makes a GPU wait."""

    loss_sum: Tensor
    """Summed loss over all processes (nats, scalar)."""
    tokens: Tensor
    """Target tokens over all processes (int64, scalar; on the CPU when there is one process)."""
    norm: Tensor | None
    """Gradient norm before clipping (scalar)."""
    rate: float
    """Learning rate of parameter groups that follow the schedule."""

    @property
    def loss(self) -> float:
        """Loss in nats per target token."""
        return float(self.loss_sum) / int(self.tokens)

    @property
    def gradient_norm(self) -> float:
        """Gradient norm before clipping; NaN when it was not computed."""
        return float("nan") if self.norm is None else float(self.norm)


def make_fabric(run: RunSection) -> Fabric:
    """Returns a launched Fabric for the run's device, precision and processes.

    Raises DeviceUnavailableError when cuda is asked for and absent, or run.compile without a device that it works on;
    InvalidRequestError when a launcher (torchrun) started another number of processes than the run has.
    """
    check_processes(run)
    if run.device == "cuda" and not torch.cuda.is_available():
        raise DeviceUnavailableError(
            "run.device = cuda, but PyTorch sees no CUDA device; use device = 'cpu' or install a CUDA build"
        )
    configure_memory()
    fabric = Fabric(accelerator=run.device, precision=run.precision, devices=run.devices, num_nodes=run.nodes)
    if run.compile:
        check_compilable(fabric.device)
    fabric.launch()
    if fabric.world_size > 1:
        atexit.register(leave_processes)
    return fabric


def check_compilable(device: torch.device) -> None:
    """Raises DeviceUnavailableError unless `torch.compile` can compile the loss for the device.

    A CPU trains with operations of HMC's own (`hmc.training.model.cpu`), which the compiler would break up.
    """
    if device.type != "cuda":
        raise DeviceUnavailableError(
            f"run.compile is for CUDA devices, and this run is on {device.type}, which has fast operations of its own; "
            "leave --compile out (run.compile = false)"
        )
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < OLDEST_COMPILED:
        raise DeviceUnavailableError(
            f"run.compile needs a GPU of compute capability {'.'.join(map(str, OLDEST_COMPILED))}, and "
            f"{torch.cuda.get_device_name(device)} has {major}.{minor}; leave --compile out (run.compile = false)"
        )
    if find_spec("triton") is None:
        raise DeviceUnavailableError(
            "run.compile needs Triton, which is not installed: install it (`pip install triton`) or leave --compile "
            "out (run.compile = false)"
        )


def check_processes(run: RunSection) -> None:
    """Raises InvalidRequestError when a launcher started another number of processes than the run has.

    Each process would else be a run of its own in the same folder.
    """
    started, wanted = os.environ.get("WORLD_SIZE", "1"), run.devices * run.nodes
    if started not in ("1", str(wanted)):
        raise InvalidRequestError(
            f"{started} processes were started (WORLD_SIZE), but the run is of {wanted} (run.devices × run.nodes). "
            "hmc train: give --set run.devices=N (processes per node) and run.nodes; hmc prune: start it without "
            "torchrun"
        )


class Updater:
    """Holds model, optimiser and batches; `update()` advances all three by one update."""

    def __init__(
        self,
        fabric: Fabric,
        model: Transformer,
        optimizer: torch.optim.Optimizer,
        batches: Iterator[Batch],
        settings: TrainSection,
        masking: Masking | None = None,
        *,
        compiled: bool = False,
        distillation: Distillation = NOTHING,
    ) -> None:
        """masking: masks heads in every update (`HeadMask.applied`). None: the model keeps its gates.

        compiled: the loss and its gradient run as `torch.compile` writes them, for any shape (see `check_compilable`).
        Raises InvalidRequestError when the outputs of layers are compared in a compiled loss.
        """
        self.fabric, self.transformer, self.settings, self.masking = fabric, model, settings, masking
        self.distill, self.teacher = distillation.settings, distillation.teacher
        if self.teacher:
            self.teacher.model.to(fabric.device)
        loss: nn.Module = SummedLoss(model, settings.label_smoothing, self.distill)
        if compiled and self.distill.compares_layers:
            raise InvalidRequestError(
                "a compiled loss does not give the outputs of its layers: leave --compile (run.compile) out, or "
                "--distill-hidden and --distill-attention (distill.hidden, distill.attention)"
            )
        if compiled:
            loss = cast(nn.Module, torch.compile(loss, dynamic=True))
        self.loss, self.optimizer = fabric.setup(loss, optimizer)
        self.batches, self.tally = batches, Tally(fabric.device)

    def update(
        self,
        step: int,
        penalty: Callable[[], Tensor] | None = None,
        rates: dict[str, float] | None = None,
        passes: Sequence[Masks] = (),
    ) -> Update:
        """Makes update `step` (from 1) along the gradient of loss per target token (nats) + penalty.

        penalty: called once, in the last forward pass; returns a scalar. rates: learning rates of parameter groups by
        `name`; groups that are not named follow the schedule. passes: the masks of several forward passes over each
        batch, whose mean is the loss; without any there is one pass. Nothing here makes a GPU wait.

        An update whose loss or gradient is NaN or infinite in any process changes neither weights nor moments;
        `tally` counts it.
        """
        fabric = self.fabric
        batches = [next(self.batches).to(fabric.device) for _ in range(self.settings.accumulate)]
        own = torch.tensor(sum(batch.tokens for batch in batches))
        total = own if fabric.world_size == 1 else self._all_sum(to_device(own, fabric.device))
        rate = learning_rate(step, self.settings)
        for group in self.optimizer.param_groups:
            group["lr"] = (rates or {}).get(group.get("name", ""), rate)
        self.optimizer.zero_grad()
        with self.masking(fabric, step, batches) if self.masking else nullcontext():
            summed = self._backward(batches, (fabric.world_size / total.double()).float(), penalty, passes)
        limit = self.settings.clip_norm or float("inf")
        norm = fabric.clip_gradients(self.loss, self.optimizer, max_norm=limit, error_if_nonfinite=False)
        summed = self._all_sum(summed)
        finite = summed.isfinite() if norm is None else summed.isfinite() & norm.isfinite()
        self.optimizer.optimizer.found_inf = (~finite).float()  # the fused Adam then leaves everything as it is
        self.optimizer.step()
        self.tally.add(summed, total, finite)
        return Update(summed, total, norm, rate)

    def _backward(
        self, batches: list[Batch], scale: Tensor, penalty: Callable[[], Tensor] | None, passes: Sequence[Masks]
    ) -> Tensor:
        """Adds the gradient of scale × summed loss + penalty; returns the summed loss of this process."""
        fabric, summed, number = self.fabric, torch.zeros((), device=self.fabric.device), max(len(passes), 1)
        for batch in batches:
            lesson: Lesson | None = None
            if self.teacher:
                with fabric.autocast():
                    lesson = self.teacher.lesson(batch)
            for index in range(number):
                if passes:
                    passes[index]()
                last = batch is batches[-1] and index == number - 1
                teaches = self.teacher is None and self.distill.active and index == 0
                fields = batch.source, batch.target_in, batch.target_out, batch.real, batch.source_padded
                with fabric.no_backward_sync(self.loss, enabled=not last):
                    found = self.loss(*fields, lesson, True) if teaches else self.loss(*fields, lesson)
                    loss, lesson = found if teaches else (found, lesson)
                    objective = loss * (scale / number)
                    if last and penalty is not None:
                        objective = objective + penalty()
                    fabric.backward(objective)
                summed += loss.detach() / number
        return summed

    def _all_sum(self, value: Tensor) -> Tensor:
        if self.fabric.world_size == 1:
            return value
        reduced: Any = self.fabric.all_reduce(value, reduce_op="sum")
        return torch.as_tensor(reduced)


def learning_rate(step: int, settings: TrainSection) -> float:
    """Returns the learning rate of update `step`, from 1 (Vaswani et al. 2017, section 5.3).

    It rises linearly to its peak, then falls with the inverse square root; cool-down takes it linearly to zero.
    """
    warmup = settings.warmup_steps
    rate = settings.learning_rate * min(step / warmup, (warmup / step) ** 0.5)
    left = settings.steps - step + 1
    return rate * min(1.0, left / settings.cooldown_steps) if settings.cooldown_steps else rate


def make_optimizer(groups: list[dict[str, Any]], settings: TrainSection) -> torch.optim.Adam:
    """Returns Adam for the parameter groups, with decoupled weight decay where the settings have any."""
    return torch.optim.Adam(
        groups,
        lr=settings.learning_rate,
        betas=settings.adam_betas,
        eps=settings.adam_epsilon,
        weight_decay=settings.weight_decay,
        decoupled_weight_decay=settings.weight_decay > 0,
        fused=True,
    )
