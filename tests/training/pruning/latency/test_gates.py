"""Expected latency against draws of the gates, and which gates stay at a latency."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.artifact.model.test_latency import table, whole
from tests.tiny import tiny_checkpoint_at

from hmc.artifact.model.layers import RemovedLayers
from hmc.training.model.checkpoints import model_from_checkpoint
from hmc.training.pruning.gate_sets import HeadGates, LayerGates, NeuronGates, SubLayerGates
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
    expected = ExpectedLatency(gates, table(1))
    probabilities = [each.open_probabilities().detach().requires_grad_() for each in gates.sets]
    for each, fixed in zip(gates.sets, probabilities, strict=True):
        each.open_probabilities = lambda fixed=fixed: fixed  # type: ignore[method-assign, misc]
    expected().backward()
    heads, neurons, shared, layers = (p.grad for p in probabilities)
    assert heads is not None
    assert shared is not None
    assert neurons is not None
    assert layers is not None
    np.testing.assert_allclose(heads[:8], 0.2, rtol=1e-3)  # encoder
    np.testing.assert_allclose(heads[8:16], 2.0, rtol=1e-3)
    np.testing.assert_allclose(neurons[-96:], 0.1, rtol=1e-3)  # decoder
    np.testing.assert_allclose(shared[2:4], 1 + 4 * 2, rtol=1e-3)  # all of the decoder's self-attention
    np.testing.assert_allclose(
        layers[3:], 1 + 1 + 8 + 4 + 2 + 4.8, rtol=1e-3
    )  # all of a decoder layer, but not the spared one


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


def test_the_decoder_keeps_seeing_the_source(gates: ModelGates) -> None:
    """The best head of cross-attention stays, and nothing presses on its gates; every other one is pressed."""
    log_alpha = np.full(230, 3.0)
    log_alpha[16:24] = -9.0
    log_alpha[21] = -8.0  # of the second layer
    values = set_gates(gates, log_alpha)
    head, shared, layer = gates.best_path(values).tolist()
    assert (head, gates.shared.total, layer) == (21, 10, 229)
    assert shared == 216 + gates.gate_of[gates.sub_layers.index(("cross", 1))]
    choice = Chooser(gates, table(16)).choose(log_alpha, np.zeros(230, bool), 13.0)
    assert choice.sizes.heads["cross"] == (0, 1)
    probabilities = [each.open_probabilities().detach().requires_grad_() for each in gates.sets]
    for each, fixed in zip(gates.sets, probabilities, strict=True):
        each.open_probabilities = lambda fixed=fixed: fixed  # type: ignore[method-assign, misc]
    ExpectedLatency(gates, table(1))().backward()
    pressed = torch.cat([p.grad for p in probabilities if p.grad is not None])
    assert not pressed[[head, shared, layer]].any()
    others = [n for n in range(16, 24) if n != head]
    assert (pressed[others] > 0).all()
    none_left = np.zeros(230, bool)
    none_left[16:24] = True
    assert not any(Chooser(gates, table(16)).choose(log_alpha, none_left, 20.0).sizes.heads["cross"])


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
