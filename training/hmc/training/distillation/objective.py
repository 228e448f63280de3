"""The loss of a student: cross entropy, mixed with what a teacher knows about the same batch."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from hmc.training.data.batches import Batch
from hmc.training.distillation.recorder import Outputs, Recorded, recording, squared_difference
from hmc.training.distillation.settings import DistillSection
from hmc.training.distillation.word_level import Mixture, TeacherLogits, mixed_loss
from hmc.training.model.cpu.cross_entropy import summed_cross_entropy
from hmc.training.model.transformer import Transformer


class Lesson(NamedTuple):
    """What a teacher knows about one batch. None of it has a graph."""

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
    """Runs the model on a batch; records what `settings` compare."""
    recorded = Recorded(Outputs([], []), Outputs([], []))
    if settings.compares_layers:
        with recording(model, settings) as recorded:
            states = model(batch.source, batch.target_in, batch.source_padded)
    else:  # without hooks, which a compiled loss could not have
        states = model(batch.source, batch.target_in, batch.source_padded)
    return Observed(states.flatten(0, 1).index_select(0, batch.real), recorded)


def lesson_of(model: Transformer, observed: Observed) -> Lesson:
    """Returns what the model that was observed teaches. Its dropout and its masks were those of that pass."""
    weight, bias = model.output_weight.detach(), model.final_logits_bias
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
