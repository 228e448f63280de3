"""The mixed loss: its value, its gradient, and its pieces, against the formula in float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from hmc.training.distillation import objective
from hmc.training.distillation.objective import Mixture, TeacherLogits, mixed_loss
from hmc.training.model.loss import summed_cross_entropy

ROWS, VOCABULARY, WIDTH = 13, 40, 6


def example(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, TeacherLogits]:
    """Logits that require a gradient, targets, and a teacher."""
    torch.manual_seed(3)
    logits = (2 * torch.randn(ROWS, VOCABULARY, dtype=torch.float64)).to(dtype).requires_grad_()
    states, weight, bias = torch.randn(ROWS, WIDTH), torch.randn(VOCABULARY, WIDTH), torch.randn(VOCABULARY)
    return logits, torch.randint(VOCABULARY, (ROWS,)), TeacherLogits(*(t.to(dtype) for t in (states, weight, bias)))


def by_formula(logits: torch.Tensor, targets: torch.Tensor, teacher: TeacherLogits, mixture: Mixture) -> torch.Tensor:
    """(1 - w) CE + w T² Σ q (log q - log p), term by term."""
    taught = teacher.states.double() @ teacher.weight.double().T + teacher.bias.double()
    q = (taught / mixture.temperature).softmax(-1)
    p = (logits.double() / mixture.temperature).softmax(-1)
    divergence = (q * (q.log() - p.log())).sum()
    entropy = functional.cross_entropy(
        logits.double(), targets, label_smoothing=mixture.label_smoothing, reduction="sum"
    )
    return (1 - mixture.weight) * entropy + mixture.weight * mixture.temperature**2 * divergence


@pytest.mark.parametrize("weight", [0.3, 1.0])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rows", [2, 5, 100])
def test_value_and_gradient_are_the_formula(
    weight: float, temperature: float, smoothing: float, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """rows: of a piece; 5 does not divide the number of all rows."""
    monkeypatch.setitem(objective.PIECE, "cpu", rows * VOCABULARY)
    mixture = Mixture(weight, temperature, smoothing)
    logits, targets, teacher = example()
    expected = by_formula(logits, targets, teacher, mixture)
    [gradient] = torch.autograd.grad(expected, logits)
    found = mixed_loss(logits, targets, teacher, mixture)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(3 * found, logits)[0], 3 * gradient)
    whole = objective._whole(logits, targets, teacher, mixture)  # what a compiled loss computes
    torch.testing.assert_close(whole, expected)
    torch.testing.assert_close(torch.autograd.grad(whole, logits)[0], gradient)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_logits_of_training_dtypes(dtype: torch.dtype, tolerance: float) -> None:
    logits, targets, teacher = example(dtype)
    mixture = Mixture(0.6, 2.0, 0.1)
    found = mixed_loss(logits, targets, teacher, mixture)
    expected = by_formula(logits, targets, teacher, mixture)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(expected.item(), rel=tolerance)
    [gradient], [exact] = torch.autograd.grad(found, logits), torch.autograd.grad(expected, logits)
    assert gradient.dtype == dtype
    torch.testing.assert_close(gradient.double(), exact.double(), rtol=0, atol=tolerance * float(exact.abs().max()))


def test_a_student_that_is_its_teacher_loses_nothing() -> None:
    _, targets, teacher = example()
    logits = teacher.rows(slice(None)).requires_grad_()
    found = mixed_loss(logits, targets, teacher, Mixture(1.0, 2.0, 0.1))
    assert found.item() == pytest.approx(0, abs=1e-12)
    assert float(torch.autograd.grad(found, logits)[0].abs().max()) < 1e-12


def test_weight_zero_is_the_cross_entropy() -> None:
    logits, targets, teacher = example()
    found = mixed_loss(logits, targets, teacher, Mixture(0.0, 2.0, 0.1))
    expected = summed_cross_entropy(logits, targets, 0.1)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, logits), torch.autograd.grad(expected, logits))


def test_the_teachers_logits_are_never_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(objective.PIECE, "cpu", 4 * VOCABULARY)
    seen: list[int] = []
    rows = TeacherLogits.rows

    def observed(self: TeacherLogits, some: slice) -> torch.Tensor:
        found = rows(self, some)
        seen.append(len(found))
        return found

    monkeypatch.setattr(TeacherLogits, "rows", observed)
    mixed_loss(*example(), Mixture(0.5, 1.0, 0.1))
    assert seen == [4, 4, 4, 1]
