"""The training loss: label-smoothed cross-entropy (Vaswani et al. 2017, section 5.4)."""

from __future__ import annotations

from torch import Tensor

from hmc.training.data.batches import Batch
from hmc.training.model.cpu.cross_entropy import summed_cross_entropy
from hmc.training.model.transformer import Transformer


def cross_entropy_sum(model: Transformer, states: Tensor, batch: Batch, label_smoothing: float) -> tuple[Tensor, int]:
    """Decoder states `[B, T, d_model]` → summed cross-entropy over real target tokens (nats, scalar), and their number.

    Logits are computed for real tokens alone, not for padding.
    """
    targets = batch.target_out.flatten()[batch.real]  # [N]
    logits = model.logits(states.flatten(0, 1).index_select(0, batch.real))  # [N, V]
    return summed_cross_entropy(logits, targets, label_smoothing), batch.tokens
