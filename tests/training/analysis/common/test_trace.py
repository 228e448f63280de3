"""The forward pass that keeps attention weights computes the same states as the model."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from tests.tiny import random_layout, random_tensors, tiny_architecture

from hmc.artifact import HeadLayout
from hmc.artifact.model.architecture import Activation
from hmc.training import FixedMask, Transformer, build_transformer
from hmc.training.analysis.common.trace import trace_decoder, trace_encoder
from hmc.training.model.checkpoints import import_tensors


def make_model(activation: str = "relu", layout: HeadLayout | None = None, dropout: float = 0.0) -> Transformer:
    arch = tiny_architecture(activation=activation)
    layout = layout or arch.full_layout()
    model = build_transformer(arch, layout, dropout=dropout)
    import_tensors(model, random_tensors(arch, layout))
    return model.eval()


SOURCE = torch.tensor([[5, 9, 30, 11, 0], [7, 8, 0, 2, 2]])
TARGET_IN = torch.tensor([[2, 40, 41, 42], [2, 50, 2, 2]])


@pytest.mark.parametrize("activation", get_args(Activation))
@pytest.mark.parametrize("uneven", [False, True])
def test_states_are_the_models_own(activation: str, uneven: bool) -> None:
    layout = random_layout(tiny_architecture(), 3) if uneven else None
    model = make_model(activation, layout, dropout=0.3)
    with torch.no_grad():
        memory, _ = model.encode(SOURCE)
        states = model(SOURCE, TARGET_IN)
    encoder = trace_encoder(model, SOURCE)
    decoder = trace_decoder(model, SOURCE, encoder.states, TARGET_IN)
    real = SOURCE.ne(2)
    torch.testing.assert_close(encoder.states[real], memory[real], atol=1e-5, rtol=0)
    read = torch.tensor([[True] * 4, [True, True, False, False]])
    torch.testing.assert_close(decoder.states[read], states[read], atol=1e-5, rtol=0)


def test_gates_of_the_model_apply() -> None:
    model = make_model()
    open_states = trace_encoder(model, SOURCE).states
    model.encoder_layers[0].self_attn.gate = FixedMask(torch.tensor([0.0, 1.0, 1.0, 1.0]))
    with torch.no_grad():
        memory, _ = model.encode(SOURCE)
    traced = trace_encoder(model, SOURCE)
    torch.testing.assert_close(traced.states[0], memory[0], atol=1e-5, rtol=0)
    assert (traced.states[0] - open_states[0]).abs().max() > 1e-3
    heads = next(traced.attentions()).heads
    assert heads is not None
    assert (heads.outputs[:, 0] == 0).all()


def test_weights_are_distributions_over_what_may_be_seen() -> None:
    model = make_model()
    encoder = trace_encoder(model, SOURCE)
    decoder = trace_decoder(model, SOURCE, encoder.states, TARGET_IN)
    for step in [*encoder.attentions(), *decoder.attentions()]:
        assert step.heads is not None
        torch.testing.assert_close(step.heads.weights.sum(-1), torch.ones(step.heads.weights.shape[:3]))
        if step.kind == "decoder_self":
            assert (step.heads.weights.triu(1) == 0).all()
        else:
            assert (step.heads.weights[1, :, :, 3:] == 0).all()  # padding
    assert [step.kind for step in decoder.attentions()] == ["decoder_self", "cross"] * 2


def test_layers_without_heads_have_none() -> None:
    layout = HeadLayout.from_json({"encoder_self": [[], [1]], "decoder_self": [[0], []], "cross": [[], [2]]})
    traced = trace_encoder(make_model(layout=layout), SOURCE)
    assert [step.heads is None for step in traced.attentions()] == [True, False]
