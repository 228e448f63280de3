"""Which optimiser trains which parameters, and how large the updates are."""

from __future__ import annotations

import torch
from tests.training.runs.test_updater import make_model, make_updater

from hmc.training.model.gates import FixedMask
from hmc.training.runs.optimizer import MuonWithAdam
from hmc.training.runs.recipe import OptimizerName, TrainSection


def first_change(optimizer: OptimizerName) -> dict[str, torch.Tensor]:
    """What the first update of a model adds to each parameter, divided by the learning rate."""
    model = make_model()
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    updater = make_updater(model, [], optimizer=optimizer)
    rate = updater.update(1).rate
    return {name: (value.detach() - before[name]) / rate for name, value in model.named_parameters()}


def test_muon_takes_the_matrices_of_the_layers_and_nothing_else() -> None:
    muon, adam = first_change("muon"), first_change("adam")
    other = {name for name in muon if not torch.allclose(muon[name], adam[name], rtol=0, atol=1e-3)}
    assert other == {name for name, change in muon.items() if change.ndim == 2 and name != "shared.weight"}
    assert other


def test_an_update_of_muon_moves_all_directions_alike_and_as_far_as_adam() -> None:
    """Half of the singular values are within a factor of two of the largest; those of Adam's first update fall fast."""
    muon, adam = (
        {n: torch.linalg.svdvals(change) for n, change in first_change(kind).items() if change.ndim == 2}
        for kind in ("muon", "adam")
    )
    for name, shape in ((name, value.shape) for name, value in make_model().named_parameters() if name in muon):
        if name == "shared.weight":
            continue
        assert 1 < muon[name][0] / (0.2 * max(shape) ** 0.5) < 1.3
        assert muon[name].median() > muon[name][0] / 2
        assert adam[name].median() < adam[name][0] / 2


def test_a_head_without_a_gradient_takes_no_step() -> None:
    """An update with all heads gives every head a momentum; in the next one, a head is masked."""
    model = make_model()
    updater = make_updater(model, [], optimizer="muon")
    updater.update(1)
    first = next(attention for _, _, attention in model.attentions())
    first.gate = FixedMask(torch.tensor([0.0, *(1.0 for _ in range(first.heads - 1))]))
    size = first.out_weight.size(1) // first.heads
    rows = (first.query.weight[:size], first.key_value.weight[:size], first.out_weight[:, :size])
    others = (first.query.weight[size:], first.key_value.weight[size : 2 * size], first.out_weight[:, size:])
    before = [part.detach().clone() for part in (*rows, *others)]
    updater.update(2)
    moved = [not torch.equal(part, old) for part, old in zip((*rows, *others), before, strict=True)]
    assert moved == [False] * 3 + [True] * 3


def test_a_matrix_without_a_gradient_takes_no_step() -> None:
    """As the feed-forward matrices of a layer whose gate is closed in an update."""
    model = make_model()
    updater = make_updater(model, [], optimizer="muon")
    updater.update(1)
    held = [layer.ffn.fc1.weight for layer in model.encoder_layers]
    before = [matrix.detach().clone() for matrix in held]
    for matrix in held:
        matrix.grad = torch.zeros_like(matrix)
    updater.optimizer.step()
    assert all(torch.equal(matrix, old) for matrix, old in zip(held, before, strict=True))


def test_updates_are_those_of_torch() -> None:
    """Tall, wide and square matrices, several of a shape, one without a gradient, with weight decay."""
    drawn = torch.Generator().manual_seed(1)
    start = [torch.randn(*shape, generator=drawn) for shape in ((6, 4), (6, 4), (4, 6), (5, 5), (5, 5))]
    ours, theirs = ([value.clone().requires_grad_() for value in start] for _ in range(2))
    settings = TrainSection(optimizer="muon", learning_rate=0.1, weight_decay=0.5)
    groups = [{"params": [*ours, torch.zeros(3, requires_grad=True)], "name": "weights"}]
    mine = MuonWithAdam(groups, [], ours[:2], settings)
    torchs = torch.optim.Muon(theirs, lr=0.1, weight_decay=0.5, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        for a, b in zip(ours[:-1], theirs[:-1], strict=True):
            a.grad = torch.randn(a.shape, generator=drawn)
            b.grad = a.grad.clone()
        mine.step()
        torchs.step()
    for a, b, before in zip(ours, theirs, start, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=3e-3)  # products are in bf16
        assert torch.equal(a, before) == (a is ours[-1])
