"""Hard-concrete gates: samples match the closed forms, closed gates stay closed, regimes do what their names say."""

import pytest
import torch

from hmc.training import FixedMask, Gate, HardConcrete, OpenGate, SampledGate


def gates_at(*log_alpha: float) -> HardConcrete:
    gates = HardConcrete(len(log_alpha))
    with torch.no_grad():
        gates.log_alpha.copy_(torch.tensor(log_alpha))
    return gates


def test_samples_match_closed_form_probabilities() -> None:
    torch.manual_seed(0)
    gates = gates_at(-3.0, -1.0, 0.0, 1.0, 3.0)
    with torch.no_grad():
        draws = torch.stack([gates.sample() for _ in range(20_000)])
        torch.testing.assert_close((draws > 0).float().mean(0), gates.open_probability(), atol=0.015, rtol=0)
        fully = 1 - gates_at(3.0, 1.0, 0.0, -1.0, -3.0).open_probability()  # P(g = 1) is P(g = 0) at -log α
        torch.testing.assert_close((draws == 1).float().mean(0), fully, atol=0.015, rtol=0)
    assert draws.min() == 0
    assert draws.max() == 1


def test_probabilities_of_the_papers_figure_6() -> None:
    """p(0) = 0.23, 0.04 and 0.86 (Voita et al. 2019, figure 6)."""
    gates = gates_at(0.0, 2.0, -3.0)
    with torch.no_grad():
        torch.testing.assert_close(1 - gates.open_probability(), torch.tensor([0.23, 0.04, 0.86]), atol=0.005, rtol=0)


def test_gradient_reaches_log_alpha_through_a_sample_and_the_penalty() -> None:
    torch.manual_seed(1)
    gates = gates_at(0.0, 0.0)
    SampledGate(gates)(torch.ones(2, 2, 3, 4)).sum().backward()
    assert gates.log_alpha.grad is not None
    [gradient] = torch.autograd.grad(gates.open_probability().sum(), gates.log_alpha)
    assert (gradient > 0).all()


def test_a_closed_gate_is_never_open_and_has_no_gradient() -> None:
    torch.manual_seed(1)
    gates, heads = gates_at(9.0, 0.5), torch.ones(1, 2, 1, 1)
    gates.close(torch.tensor([True, False]))
    drawn = torch.stack([SampledGate(gates)(heads).flatten() for _ in range(50)])
    assert (drawn[:, 0] == 0).all()
    assert drawn[:, 1].any()
    assert gates.open_probability()[0] == 0
    (drawn.sum() + gates.open_probability().sum()).backward()
    assert gates.log_alpha.grad is not None
    assert gates.log_alpha.grad[0] == 0
    assert gates.log_alpha.grad[1] != 0
    gates.close(torch.tensor([False, False]))
    assert gates.open_probability()[0] > 0.99


def test_regimes() -> None:
    heads = torch.ones(1, 3, 2, 2)
    assert torch.equal(OpenGate()(heads), heads)
    assert FixedMask(torch.tensor([1, 0, 1]))(heads)[0, :, 0, 0].tolist() == [1, 0, 1]
    gates = gates_at(-5.0, 5.0, 0.3)
    assert [name for name, _ in SampledGate(gates).named_parameters()] == ["hard_concrete.log_alpha"]
    assert not list(OpenGate().parameters())


@pytest.mark.parametrize("regime", [FixedMask(torch.tensor([1.0, 0.0])), SampledGate(gates_at(2.0, 2.0))])
def test_gates_keep_the_shape(regime: Gate) -> None:
    assert regime(torch.zeros(3, 2, 5, 7)).shape == (3, 2, 5, 7)
