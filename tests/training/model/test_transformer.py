"""What the model promises other engines about its weights."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from tests.tiny import tiny_architecture

from hmc.training import build_transformer, freeze, make_batch
from hmc.training.model.loss import cross_entropy_sum


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


@pytest.mark.parametrize(("part", "other"), [("encoder", "decoder"), ("decoder", "encoder")])
def test_a_frozen_stack_has_no_parameter_left_to_train(part: Literal["encoder", "decoder"], other: str) -> None:
    arch = tiny_architecture().model_copy(update={"stack_norms": True, "pre_norm": True, "own_output": True})
    model = build_transformer(arch)
    trained = {id(p) for p in freeze(model, part)}
    free = [name for name, p in model.named_parameters() if id(p) in trained]
    outputs = ["output"] if part == "encoder" else []
    assert free == [
        name
        for name, _ in model.named_parameters()
        if name in outputs or name.startswith((f"{other}.", f"{other}_norm."))
    ]
    assert any(name.startswith(f"{other}_norm.") for name in free)
