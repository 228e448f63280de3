"""What the model promises other engines about its weights."""

from __future__ import annotations

import torch
from tests.tiny import tiny_architecture

from hmc.training.data.batches import make_batch
from hmc.training.model.loss import cross_entropy_sum
from hmc.training.model.transformer import build_transformer


def test_the_pad_row_stays_zero_while_the_tied_output_layer_trains() -> None:
    torch.manual_seed(0)
    arch = tiny_architecture()
    model = build_transformer(arch)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    batch = make_batch([[5, 6, 7, 0], [8, 0]], [[9, 10, 0], [11, 12, 13, 0]], arch.pad_id)
    for _ in range(3):
        optimizer.zero_grad()
        cross_entropy_sum(model, model(batch.source, batch.target_in), batch, 0.1)[0].backward()
        optimizer.step()
    assert model.shared.weight[arch.pad_id].abs().max() == 0
    assert model.shared.weight[arch.eos_id].abs().max() > 0
