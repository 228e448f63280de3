"""The loss of a student: cross entropy, the divergence from a teacher's words, and the difference from its layers.

Cross entropy and divergence are computed in one pass over the logits (Kim & Rush 2016, equation 7):

    Σ (1 - w) · CE(z, y) + w · T² · KL(softmax(t / T) ‖ softmax(z / T))        z: student's logits, t: teacher's

The teacher's logits `[N, V]` are never whole in memory: they are computed for a few rows at a time, together with the
gradient by the student's logits, which replaces them for the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from hmc.training.data.batches import Batch
from hmc.training.distillation.settings import DistillSection
from hmc.training.model.loss import summed_cross_entropy
from hmc.training.model.transformer import Transformer

PIECE = {"cpu": 2**19, "cuda": 2**25}
"""Logits computed with at a time: what stays in a CPU's cache, and what fills a GPU (128 MiB in fp32)."""


class Lesson(NamedTuple):
    """A teacher's outputs for one batch. None of it has a graph."""

    logits: TeacherLogits
    """For the real target tokens, in the order of `Batch.real`."""
    recorded: Recorded
    """Outputs of its layers and attentions, where they are compared."""


class Observed(NamedTuple):
    """One forward pass of a model."""

    states: Tensor
    """`[N, d]` decoder states of the real target tokens."""
    recorded: Recorded


def observe(model: Transformer, batch: Batch, settings: DistillSection) -> Observed:
    """Runs the model on a batch, and records the outputs that `settings` compare."""
    recorded = Recorded(Outputs([], []), Outputs([], []))
    if settings.compares_layers:
        with recording(model, settings) as recorded:
            states = model(batch.source, batch.target_in, batch.source_padded)
    else:  # without hooks, which a compiled loss could not have
        states = model(batch.source, batch.target_in, batch.source_padded)
    return Observed(states.flatten(0, 1).index_select(0, batch.real), recorded)


def lesson_of(model: Transformer, observed: Observed) -> Lesson:
    """Returns the lesson of the observed model. They have the dropout and the masks of that pass."""
    weight = model.output_weight.detach()
    bias = model.final_logits_bias
    return Lesson(TeacherLogits(observed.states.detach(), weight, bias), observed.recorded.detached())


def taught_loss(
    model: Transformer, observed: Observed, batch: Batch, lesson: Lesson, settings: DistillSection, smoothing: float
) -> Tensor:
    """Returns the summed loss over real target tokens (nats, scalar) of the model that was observed.

    smoothing: label smoothing of the cross entropy. Differences of layers are means over positions; they count once
    for every target token.
    """
    if settings.weight:
        targets = batch.target_out.flatten()[batch.real]
        mixture = Mixture(settings.weight, settings.temperature, smoothing)
        loss = mixed_loss(model.logits(observed.states), targets, lesson.logits, mixture)
    else:
        loss = plain_loss(model, observed, batch, smoothing)
    pad = model.arch.pad_id
    if settings.hidden:
        difference = squared_difference(observed.recorded.hidden, lesson.recorded.hidden, batch, pad)
        loss = loss + settings.hidden * batch.tokens * difference
    if settings.attention:
        difference = squared_difference(observed.recorded.attention, lesson.recorded.attention, batch, pad)
        loss = loss + settings.attention * batch.tokens * difference
    return loss


def plain_loss(model: Transformer, observed: Observed, batch: Batch, smoothing: float) -> Tensor:
    """Returns the summed cross entropy over real target tokens (nats, scalar) of the model that was observed."""
    targets = batch.target_out.flatten()[batch.real]
    return summed_cross_entropy(model.logits(observed.states), targets, smoothing)


class TeacherLogits(NamedTuple):
    """The parts of the teacher's logits: t = states · Wᵀ + b. None of it gets a gradient."""

    states: Tensor
    """`[N, d]` decoder states of the teacher."""
    weight: Tensor
    """W `[V, d]`."""
    bias: Tensor
    """b `[V]`."""

    def rows(self, some: slice) -> Tensor:
        """`[n, V]` logits of some rows in fp32 or wider; products in autocast's dtype."""
        logits = functional.linear(self.states[some], self.weight, self.bias)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))


class Mixture(NamedTuple):
    """How cross entropy and divergence are mixed."""

    weight: float
    """w, from 0 to 1: share of the divergence."""
    temperature: float
    """T > 0."""
    label_smoothing: float
    """ε of the cross entropy; the teacher's distribution is not smoothed."""


def mixed_loss(logits: Tensor, targets: Tensor, teacher: TeacherLogits, mixture: Mixture) -> Tensor:
    """logits `[N, V]`, targets `[N]` → summed loss (nats, scalar), in fp32 or wider; differentiable once."""
    if torch.compiler.is_compiling():  # it makes kernels of its own, for any number of rows
        return _whole(logits, targets, teacher, mixture)
    return cast(Tensor, _MixedLoss.apply(logits, targets, teacher, mixture))  # type: ignore[no-untyped-call]


def _whole(logits: Tensor, targets: Tensor, teacher: TeacherLogits, mixture: Mixture) -> Tensor:
    """The loss in PyTorch's own operations."""
    weight, temperature, smoothing = mixture
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    with torch.no_grad():
        taught = teacher.rows(slice(None)).to(wide.dtype).div(temperature).log_softmax(-1)
    entropy = functional.cross_entropy(wide, targets, label_smoothing=smoothing, reduction="sum")
    learned = wide.div(temperature).log_softmax(-1)
    divergence = functional.kl_div(learned, taught, reduction="sum", log_target=True)
    return (1 - weight) * entropy + weight * temperature**2 * divergence


class _MixedLoss(torch.autograd.Function):
    """The gradient by z is (1 - w) (softmax(z) - (1 - ε) [y] - ε / V) + w T (softmax(z / T) - softmax(t / T))."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, teacher: TeacherLogits, mixture: Mixture) -> Tensor:
        wide = torch.promote_types(logits.dtype, torch.float32)
        gradient = torch.empty_like(logits)
        total = torch.zeros((), device=logits.device, dtype=wide)
        rows = max(1, PIECE.get(logits.device.type, PIECE["cuda"]) // logits.size(1))
        for first in range(0, len(logits), rows):
            some = slice(first, first + rows)
            loss, by_logits = _piece(logits[some].to(wide), targets[some, None], teacher.rows(some).to(wide), mixture)
            total += loss
            gradient[some] = by_logits
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (by_logits,) = ctx.saved_tensors
        return by_logits * gradient, None, None, None


def _piece(z: Tensor, column: Tensor, t: Tensor, mixture: Mixture) -> tuple[Tensor, Tensor]:
    """z, t `[n, V]`, targets `[n, 1]` → summed loss and its gradient by z `[n, V]`."""
    weight, temperature, smoothing = mixture
    taught = t.div_(temperature).log_softmax(-1)
    learned = (z / temperature).log_softmax(-1)
    q = taught.exp()
    loss = weight * temperature**2 * ((taught - learned) * q).sum()
    by_logits = learned.exp().sub_(q).mul_(weight * temperature)
    if weight < 1:
        log_p = learned if temperature == 1 else z.log_softmax(-1)
        certain = 1 - smoothing
        spread = smoothing / z.size(1)
        loss = loss - (1 - weight) * (certain * log_p.gather(1, column).sum() + spread * log_p.sum())
        by_logits.add_(log_p.exp_().sub_(spread), alpha=1 - weight)
        by_logits.scatter_add_(1, column, by_logits.new_full(column.shape, -certain * (1 - weight)))
    return loss, by_logits


def _detached(output: Tensor | None) -> Tensor | None:
    return None if output is None else output.detach()


class Outputs(NamedTuple):
    """Outputs of some modules in one forward pass; None of a module that did not run, as its layer was removed."""

    source: list[Tensor | None]
    """`[B, S, d]` of every module of the encoder."""
    target: list[Tensor | None]
    """`[B, T, d]` of every module of the decoder."""

    def detached(self) -> Outputs:
        """Returns the outputs without their graph."""
        return Outputs(list(map(_detached, self.source)), list(map(_detached, self.target)))


class Recorded(NamedTuple):
    """The outputs of a forward pass for the comparison of layers; empty if no layers are compared."""

    hidden: Outputs
    """Outputs of layers."""
    attention: Outputs
    """Outputs of attentions, after W_O and its bias."""

    def detached(self) -> Recorded:
        """Returns the outputs without their graph."""
        return Recorded(self.hidden.detached(), self.attention.detached())


@contextmanager
def recording(model: Transformer, settings: DistillSection) -> Iterator[Recorded]:
    """Yields the outputs that `settings` compare. The model's forward pass within the context fills them."""
    recorded = Recorded(Outputs([], []), Outputs([], []))
    hooks = []
    modules: list[tuple[nn.Module, list[Tensor | None]]] = []
    if settings.hidden:
        modules += [(layer, recorded.hidden.source) for layer in model.encoder_layers]
        modules += [(layer, recorded.hidden.target) for layer in model.decoder_layers]
    if settings.attention:
        for kind, _, attention in model.attentions():
            modules.append(
                (attention, recorded.attention.source if kind == "encoder_self" else recorded.attention.target)
            )
    for module, into in modules:
        hooks.append(module.register_forward_hook(_keeper(into, len(into))))
        into.append(None)
    try:
        yield recorded
    finally:
        for hook in hooks:
            hook.remove()


def _keeper(into: list[Tensor | None], place: int) -> Any:
    def keep(_module: nn.Module, _arguments: object, output: Tensor) -> None:
        into[place] = output

    return keep


def squared_difference(student: Outputs, teacher: Outputs, batch: Batch, pad_id: int) -> Tensor:
    """Returns the mean squared difference of the outputs (scalar), in fp32 or wider. The teacher gets no gradient.

    The mean is over the width and all positions without padding, then over the modules that both have.
    """
    target = torch.zeros_like(batch.target_out, dtype=torch.bool).view(-1)
    target = target.index_fill(0, batch.real, True).view_as(batch.target_out)
    differences = [
        *_differences(student.source, teacher.source, batch.source.ne(pad_id)),
        *_differences(student.target, teacher.target, target),
    ]
    return torch.stack(differences).mean()


def _differences(student: Sequence[Tensor | None], teacher: Sequence[Tensor | None], real: Tensor) -> Iterator[Tensor]:
    """Outputs `[B, L, d]`, real `[B, L]` (True: no padding) → the mean squared difference of each module."""
    for own, other in zip(student, teacher, strict=True):
        if own is None or other is None:
            continue
        wide = torch.promote_types(own.dtype, torch.float32)
        by_position = (own.to(wide) - other.detach().to(wide)).square().mean(-1)
        yield (by_position * real).sum() / real.sum()
