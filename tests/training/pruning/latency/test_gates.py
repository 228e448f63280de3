"""Expected latency against draws of the gates, and which gates stay at a latency."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.artifact.model.test_latency import table, whole
from tests.tiny import tiny_checkpoint_at

from hmc.artifact.model.layers import RemovedLayers
from hmc.training import HeadGates, NeuronGates, model_from_checkpoint
from hmc.training.pruning.gate_sets import LayerGates, SubLayerGates
from hmc.training.pruning.latency.choice import Choice, Chooser
from hmc.training.pruning.latency.expected import ExpectedLatency, ModelGates


@pytest.fixture
def gates(tmp_path: Path) -> ModelGates:
    checkpoint = tiny_checkpoint_at(tmp_path / "c")
    model = model_from_checkpoint(checkpoint)
    heads, neurons = HeadGates(model, checkpoint.layout, 0.0), NeuronGates(model, 0.0)
    found = ModelGates(heads, neurons, SubLayerGates(heads, neurons, 0.0), LayerGates(model, 0.0))
    assert [each.total for each in found.sets] == [24, 192, 10, 4]
    return found


def set_gates(gates: ModelGates, log_alpha: np.ndarray) -> torch.Tensor:
    values = torch.from_numpy(log_alpha).float()
    for each, part in zip(gates.sets, gates.split(values), strict=True):
        each.set_log_alpha(part)
    return values


def choice_of(gates: ModelGates, kept: np.ndarray) -> Choice:
    """The choice of gates exactly as drawn, with no layer implied by others; closed sub-layers have nothing."""
    kept[:216] &= kept[216:226][np.array(gates.gate_of)[gates.owner.numpy()]]
    return Chooser(gates, table(1)).restored(kept)


def test_the_expected_latency_is_the_mean_over_draws(gates: ModelGates) -> None:
    rng = np.random.default_rng(0)
    set_gates(gates, rng.normal(-1, 2, 230))
    probability = torch.cat([each.open_probabilities() for each in gates.sets]).detach().numpy()
    found = float(ExpectedLatency(gates, table(1))().detach())
    draws = [choice_of(gates, rng.random(230) < probability).ms for _ in range(3000)]
    assert found == pytest.approx(np.mean(draws), abs=4 * np.std(draws) / np.sqrt(len(draws)))


def test_its_gradient_is_what_a_gate_costs(gates: ModelGates) -> None:
    set_gates(gates, np.full(230, 9.0))  # all surely open
    heads, neurons, shared, layers = gates.split(pressure(gates))
    np.testing.assert_allclose(heads[:8], 0.2, rtol=1e-3)  # encoder
    np.testing.assert_allclose(heads[8:16], 2.0, rtol=1e-3)
    np.testing.assert_allclose(neurons[-96:], 0.1, rtol=1e-3)  # decoder
    np.testing.assert_allclose(shared[2:4], 1 + 4 * 2, rtol=1e-3)  # all of the decoder's self-attention
    np.testing.assert_allclose(layers[2:], 1 + 1 + 8 + 4 + 2 + 4.8, rtol=1e-3)  # all of a decoder layer


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("ms", [12.5, 16.0, 25.0, 40.0])
def test_a_choice_keeps_the_latency_and_the_best_gates(gates: ModelGates, seed: int, ms: float) -> None:
    rng = np.random.default_rng(seed)
    log_alpha = rng.normal(0, 2, 230)
    closed = rng.random(230) < 0.1
    closed[-14:] = False
    choice = Chooser(gates, table(16)).choose(log_alpha, closed, ms)
    kept = np.concatenate(choice.parts)
    assert choice.ms == pytest.approx(table(16).ms(choice.sizes))
    assert choice.ms <= ms
    assert not (kept & closed).any()
    for stack in ("encoder", "decoder"):
        assert choice.sizes.layers(stack)
    for layer, open_ in zip(gates.layers.layers, choice.layers, strict=True):
        assert open_ == (layer[1] in choice.sizes.layers(layer[0]))
    assert any(choice.sizes.heads["cross"])
    # what of a sub-layer stays is better than what does not, but for the head by which the decoder sees the source
    worth, owner = np.where(closed, -np.inf, log_alpha)[:216], gates.owner.numpy()
    for number, (name, _) in enumerate(gates.sub_layers):
        mine, open_ = owner == number, kept[:216]
        if open_[mine].any() and name != "cross":
            assert worth[mine & open_].min() > worth[mine & ~open_].max(initial=-np.inf)
    looser = Chooser(gates, table(16)).choose(log_alpha, closed, ms * 1.2)
    assert looser.ms >= choice.ms


def test_gates_that_cost_more_than_is_left_are_passed_over(gates: ModelGates) -> None:
    log_alpha = np.full(230, -3.0)
    log_alpha[-14:] = 9.0
    log_alpha[8:12] = 5.0, 4.0, 3.0, 2.0  # heads of the decoder's self-attention: 1 ms, and 2 ms each
    log_alpha[0] = 1.0  # a head of the encoder: 0.1 ms, and 0.2 ms
    choice = Chooser(gates, table(16)).choose(log_alpha, np.zeros(230, bool), 11.5 + 1 + 3 + 1)
    assert choice.sizes.heads["decoder_self"] == (1, 0)
    assert choice.sizes.heads["encoder_self"][0] >= 1


def test_a_sub_layer_whose_own_gate_is_low_is_filled_head_by_head(gates: ModelGates) -> None:
    log_alpha = np.full(230, -9.0)
    log_alpha[-14:] = 9.0
    log_alpha[:4] = 5.0, 6.0, 5.5, 7.0
    log_alpha[216 + gates.gate_of[0]] = 4.0
    choice = Chooser(gates, table(16)).choose(log_alpha, np.zeros(230, bool), 11.5 + 1 + 0.1 + 2 * 0.2 + 0.1)
    assert choice.sizes.heads["encoder_self"] == (2, 0)
    assert choice.heads[:4].tolist() == [False, True, False, True]


@pytest.mark.parametrize("lowest", ["head", "sub-layer"])
def test_the_decoder_keeps_seeing_the_source(gates: ModelGates, lowest: str) -> None:
    """The best head of cross-attention stays, and nothing presses on its gates; every other one is pressed."""
    log_alpha = np.full(230, 3.0)
    log_alpha[16:24] = -9.0 if lowest == "head" else 1.0
    log_alpha[21] = -8.0 if lowest == "head" else 2.0  # of the second layer
    if lowest == "sub-layer":
        log_alpha[[216 + gates.gate_of[gates.sub_layers.index(("cross", layer))] for layer in (0, 1)]] = -5.0, -4.0
    set_gates(gates, log_alpha)
    path = [21, 216 + gates.gate_of[gates.sub_layers.index(("cross", 1))], 229]
    assert path in gates.paths.tolist()
    choice = Chooser(gates, table(16)).choose(log_alpha, np.zeros(230, bool), 13.0)
    assert choice.sizes.heads["cross"] == (0, 1)
    assert choice.heads[21]
    pressed = pressure(gates)
    assert not pressed[path].any()
    assert (pressed[[n for n in range(16, 24) if n != 21]] > 0).all()


def test_no_way_to_the_source_is_spared_while_it_is_open(gates: ModelGates) -> None:
    set_gates(gates, np.full(230, 3.0))
    assert (pressure(gates) > 0)[16:24].all()


def test_a_model_without_cross_attention_stays_without(gates: ModelGates) -> None:
    closed = np.zeros(230, bool)
    closed[16:24] = True
    assert not any(Chooser(gates, table(16)).choose(np.full(230, 3.0), closed, 20.0).sizes.heads["cross"])


def pressure(gates: ModelGates) -> torch.Tensor:
    """`[total]` how strongly each gate is pressed: the gradient of the expected latency in its open probability."""
    probabilities = [each.open_probabilities().detach().requires_grad_() for each in gates.sets]
    for each, fixed in zip(gates.sets, probabilities, strict=True):
        each.open_probabilities = lambda fixed=fixed: fixed  # type: ignore[method-assign, misc]
    ExpectedLatency(gates, table(1))().backward()
    return torch.cat([p.grad for p in probabilities if p.grad is not None])


def test_neurons_fill_their_block(gates: ModelGates) -> None:
    log_alpha = np.full(230, -3.0)
    log_alpha[24:30] = np.arange(6) + 1.0  # six neurons of the encoder's first layer
    log_alpha[-14:] = 9.0
    choice = Chooser(gates, table(16)).choose(log_alpha, np.zeros(230, bool), 10 + 1.5 + 1 + 16 * 0.01 + 1e-9)
    assert choice.sizes.neurons.encoder == (16, 0)
    assert choice.neurons[:6].all()


def test_layers_that_are_left_empty_are_removed(gates: ModelGates) -> None:
    log_alpha = np.full(230, -3.0)
    log_alpha[-14:] = 9.0
    log_alpha[:4] = 5.0  # the heads of the encoder's first layer
    choice = Chooser(gates, table(16)).choose(log_alpha, np.zeros(230, bool), 10 + 1.5 + 1 + 0.1 + 4 * 0.2 + 1e-9)
    assert choice.sizes.heads["encoder_self"] == (4, 0)
    assert choice.sizes.removed.encoder == (1,)
    assert len(choice.sizes.removed.decoder) == 1
    everything = Chooser(gates, table(16)).choose(log_alpha, np.zeros(230, bool), 1e9)
    assert everything.sizes == whole()
    assert everything.sizes.removed == RemovedLayers()
