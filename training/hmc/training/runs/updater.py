"""Optimiser updates: loss, gradient accumulation, several processes, mixed precision, and a tally of the updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from hmc.artifact.errors import InvalidRequestError
from hmc.training.data.batches import Batch, to_device
from hmc.training.distillation.objective import Lesson, lesson_of, observe, plain_loss, taught_loss
from hmc.training.distillation.settings import OFF, DistillSection
from hmc.training.distillation.teacher import NOTHING, Distillation
from hmc.training.model.loss import cross_entropy_sum
from hmc.training.model.transformer import Transformer
from hmc.training.runs.recipe import TrainSection

MOST_SKIPPED = 10
"""A run stops when so many updates in a row were skipped, because their loss or gradient was NaN or infinite."""
Masking = Callable[[Fabric, int, Sequence[Batch]], AbstractContextManager[Callable[[int], None]]]
"""(fabric, step, batches) → a context in which the model's masks are those of update `step`, made of `batches`. It
yields what is called with the number of each batch before its forward pass."""
Masks = Callable[[], None]
"""Puts masks on the model before a forward pass."""


class SummedLoss(nn.Module):
    """The summed loss of a batch: the cross entropy, and the teacher's part.

    Model and loss are one module, so that wrappers for several processes see every parameter.
    """

    def __init__(self, model: Transformer, label_smoothing: float, distill: DistillSection = OFF) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing
        self.distill = distill

    def forward(
        self,
        source: Tensor,
        target_in: Tensor,
        target_out: Tensor,
        real: Tensor,
        source_padded: bool,
        lesson: Lesson | None = None,
        teaches: bool = False,
    ) -> Tensor | tuple[Tensor, Lesson]:
        """The fields of a `Batch`, which such wrappers would not pass on → summed loss (nats, scalar).

        lesson: the teacher's lesson for the batch. None: the loss is the cross entropy. teaches: the model learns from
        no teacher, and returns its own lesson beside the loss.
        """
        batch = Batch(source, target_in, target_out, real, source_padded)
        if teaches:
            observed = observe(self.model, batch, self.distill)
            loss = plain_loss(self.model, observed, batch, self.label_smoothing)
            return loss, lesson_of(self.model, observed)
        if lesson is not None:
            observed = observe(self.model, batch, self.distill)
            return taught_loss(self.model, observed, batch, lesson, self.distill, self.label_smoothing)
        states = self.model(source, target_in, source_padded)
        return cross_entropy_sum(self.model, states, batch, self.label_smoothing)[0]


class Tally:
    """The results of updates: their mean loss since the last line of the log, and the number that were skipped.

    Counts updates on their device: only `line` and `check` make a GPU wait. All processes count the same."""

    def __init__(self, device: torch.device) -> None:
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._tokens, self._skipped, self._in_a_row, self._longest = (
            torch.zeros((), dtype=torch.int64, device=device) for _ in range(4)
        )

    def add(self, loss: Tensor, tokens: Tensor, finite: Tensor) -> None:
        """Adds an update. loss: summed over its tokens (nats). finite: False if it was skipped. All are scalars."""
        self._loss = self._loss + torch.where(finite, loss, 0.0)
        self._tokens = self._tokens + finite * tokens
        self._skipped = self._skipped + ~finite
        self._in_a_row = (self._in_a_row + 1) * ~finite
        self._longest = torch.maximum(self._longest, self._in_a_row)

    def line(self) -> dict[str, float]:
        """Starts anew; returns the mean `loss` per token of the updates since the last line, and how many were
        `skipped`, if any were. Without any update there is no loss. Raises as `check`."""
        self.check()
        tokens = int(self._tokens)
        skipped = int(self._skipped)
        numbers = {"loss": float(self._loss) / tokens} if tokens else {}
        for counted in (self._loss, self._tokens, self._skipped):
            counted.zero_()
        return numbers | ({"skipped": float(skipped)} if skipped else {})

    def state(self) -> list[float]:
        """The state that a resumed run needs for the same next line: the summed loss, its tokens and the skipped
        updates."""
        return list(map(float, (self._loss, self._tokens, self._skipped)))

    def restore(self, state: list[float]) -> None:
        """Goes on from a `state`; an empty state is the start."""
        for counted, value in zip((self._loss, self._tokens, self._skipped), state, strict=False):
            counted.fill_(value)

    def check(self) -> bool:
        """Returns whether the last update was made. Raises InvalidRequestError when too many in a row were skipped."""
        if int(self._longest) >= MOST_SKIPPED:
            raise InvalidRequestError(
                f"{int(self._longest)} updates in a row had a loss or gradient that was NaN or infinite, and were "
                "skipped: training has diverged. No state was saved since. Choose a lower learning rate, a longer "
                "warm-up, or gradient clipping, and another folder"
            )
        return not int(self._in_a_row)


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
        self.fabric = fabric
        self.transformer = model
        self.settings = settings
        self.masking = masking
        self.distill = distillation.settings
        self.teacher = distillation.teacher
        if self.teacher:
            self.teacher.model.to(fabric.device)
        loss: nn.Module = SummedLoss(model, settings.label_smoothing, self.distill)
        if compiled and self.distill.compares_layers:
            raise InvalidRequestError(
                "a compiled loss does not give the outputs of its layers: leave run.compile out, or "
                "distill.hidden and distill.attention"
            )
        if compiled:
            loss = cast(nn.Module, torch.compile(loss, dynamic=True))
        self.loss, self.optimizer = fabric.setup(loss, optimizer)
        self.batches = batches
        self.tally = Tally(fabric.device)

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
        batch, whose mean is the loss; without any there is one pass. With Adam, nothing here makes a GPU wait.

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
        with self.masking(fabric, step, batches) if self.masking else nullcontext(_all_alike) as mask:
            summed = self._backward(batches, (fabric.world_size / total.double()).float(), penalty, passes, mask)
        limit = self.settings.clip_norm or float("inf")
        norm = fabric.clip_gradients(self.loss, self.optimizer, max_norm=limit, error_if_nonfinite=False)
        summed = self._all_sum(summed)
        finite = summed.isfinite() if norm is None else summed.isfinite() & norm.isfinite()
        self.optimizer.optimizer.found_inf = (~finite).float()  # the optimiser then leaves everything as it is
        self.optimizer.step()
        self.tally.add(summed, total, finite)
        return Update(summed, total, norm, rate)

    def _backward(
        self,
        batches: list[Batch],
        scale: Tensor,
        penalty: Callable[[], Tensor] | None,
        passes: Sequence[Masks],
        mask: Callable[[int], None],
    ) -> Tensor:
        """Adds the gradient of scale × summed loss + penalty; returns the summed loss of this process."""
        fabric = self.fabric
        summed = torch.zeros((), device=self.fabric.device)
        number = max(len(passes), 1)
        for part, batch in enumerate(batches):
            mask(part)
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
                    result = self.loss(*fields, lesson, True) if teaches else self.loss(*fields, lesson)
                    loss, lesson = result if teaches else (result, lesson)
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


def _all_alike(part: int) -> None:
    """Without masking, every part of a batch is computed by the model as it is."""


def learning_rate(step: int, settings: TrainSection) -> float:
    """Returns the learning rate of update `step`, from 1 (Vaswani et al. 2017, section 5.3).

    It rises linearly to its peak, then falls with the inverse square root; cool-down takes it linearly to zero.
    """
    warmup = settings.warmup_steps
    rate = settings.learning_rate * min(step / warmup, (warmup / step) ** 0.5)
    remaining = settings.steps - step + 1
    return rate * min(1.0, remaining / settings.cooldown_steps) if settings.cooldown_steps else rate
