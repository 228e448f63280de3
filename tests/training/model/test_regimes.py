"""Heads that are left out against heads that are masked: outputs, gradients, searches."""

from __future__ import annotations

import pytest
import torch
from tests.training.runs.test_updater import batches, make_model

from hmc.artifact import Head, HeadLayout
from hmc.training import Transformer, beam_search, mask_to_layout
from hmc.training.model.gates import SelectedHeads
from hmc.training.model.loss import cross_entropy_sum
from hmc.training.model.regimes import select_layout

WHOLE = make_model().arch.full_layout()
HEADS = list(WHOLE.heads())


def gradients(model: Transformer) -> dict[str, torch.Tensor]:
    batch = batches()[1]
    model.zero_grad()
    loss, _ = cross_entropy_sum(model, model(batch.source, batch.target_in), batch, 0.1)
    loss.backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach()} | found


@pytest.mark.parametrize("kept", [HEADS[:9], HEADS[1::3], HEADS[5:], HEADS], ids=["first", "third", "last", "all"])
def test_selected_heads_give_what_masked_ones_give(kept: list[Head]) -> None:
    """`first` leaves whole attentions without a head."""
    layout = HeadLayout.from_heads(kept, 2, 2)
    masked, selected = make_model().eval(), make_model().eval()
    mask_to_layout(masked, WHOLE, layout)
    select_layout(selected, WHOLE, layout)
    expected, found = gradients(masked), gradients(selected)
    assert found.keys() == expected.keys(), "processes wait for a gradient of every parameter"
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=1e-4, atol=1e-6), name
    sources = [[5, 9, 7, masked.arch.eos_id], [11, masked.arch.eos_id]]
    both = [beam_search(model, sources, openings=[[]] * 2, beam=3, max_length=9) for model in (masked, selected)]
    assert [[each.ids for each in row] for row in both[0]] == [[each.ids for each in row] for row in both[1]]


def test_some_heads_are_not_computed() -> None:
    model = make_model()
    select_layout(model, WHOLE, HeadLayout.from_heads(HEADS[1::3], 2, 2))
    states, some = torch.zeros(1, 4, model.arch.d_model), 0
    for *_, attention in model.attentions():
        gate = attention.gate
        if isinstance(gate, SelectedHeads):
            some += 1
            assert attention.project(states).keys.size(1) == gate.heads < attention.heads
    assert some
