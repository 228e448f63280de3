"""What the model promises other engines about its weights."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from tests.tiny import tiny_architecture

from hmc.artifact import HeadLayout
from hmc.artifact.model.ffn import FfnWidths
from hmc.artifact.model.heads import KINDS
from hmc.artifact.model.layers import stack_of
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


def test_heads_and_neurons_begin_as_they_would_beside_all_others() -> None:
    """One head of 16: its first weights are as small as in an attention that has them all."""
    torch.manual_seed(0)
    arch = tiny_architecture().model_copy(update={"d_model": 64, "heads": 16, "head_dim": 4, "ffn_dim": 256})
    layout = HeadLayout.from_json({kind: [[5]] * arch.depth(stack_of(kind)) for kind in KINDS})
    widths = FfnWidths(encoder=(16,) * arch.encoder_layers, decoder=(16,) * arch.decoder_layers)
    whole, slim = build_transformer(arch), build_transformer(arch, layout, widths)
    for (_, _, many), (_, _, one) in zip(whole.attentions(), slim.attentions(), strict=True):
        for name in ("query.weight", "key_value.weight", "out_weight"):
            all_of_it, part = many.get_parameter(name), one.get_parameter(name)
            assert part.numel() * 16 == all_of_it.numel()
            assert part.abs().max().item() == pytest.approx(all_of_it.abs().max().item(), rel=0.1)
    fed = [model.get_parameter("encoder.0.ffn.fc1.weight").abs().max().item() for model in (whole, slim)]
    assert fed[1] == pytest.approx(fed[0], rel=0.1)


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
