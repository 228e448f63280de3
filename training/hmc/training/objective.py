"""The training loss and the learning-rate schedule (Vaswani et al. 2017, sections 5.3 and 5.4)."""

from __future__ import annotations

from torch import Tensor

from hmc.training.batches import Batch
from hmc.training.cross_entropy import summed_cross_entropy
from hmc.training.recipe import TrainSection
from hmc.training.transformer import Transformer


def cross_entropy_sum(model: Transformer, states: Tensor, batch: Batch, label_smoothing: float) -> tuple[Tensor, int]:
    """Summed label-smoothed cross-entropy (nats) over real target tokens, and their number.

    states `[B, T, d_model]`; only the states of real tokens meet the vocabulary.
    """
    flat = batch.target_out.flatten()
    real = flat.ne(model.arch.pad_id).nonzero().flatten()
    targets = flat[real]  # [N]
    logits = model.logits(states.flatten(0, 1).index_select(0, real))  # [N, V]
    return summed_cross_entropy(logits, targets, label_smoothing), targets.numel()


def learning_rate(step: int, settings: TrainSection) -> float:
    """Rate of update `step` (from 1): linear warm-up to the peak, inverse square root after, optional cool-down."""
    warmup = settings.warmup_steps
    rate = settings.learning_rate * min(step / warmup, (warmup / step) ** 0.5)
    left = settings.steps - step + 1
    return rate * min(1.0, left / settings.cooldown_steps) if settings.cooldown_steps else rate
