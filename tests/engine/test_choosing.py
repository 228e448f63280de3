"""What a step ends with: sums by blocks, ties, penalties, and a token that is drawn."""

from __future__ import annotations

import numpy as np
import pytest

from hmc.engine.choosing import best_tokens, draw, log_sum_exp, penalise_repetition

F = np.float32
NONE = np.zeros((1, 0), np.int64)


def test_ties_go_to_the_lower_id() -> None:
    logits = np.array([[1, 3, 3, 2, 3], [np.inf, 0, 0, 0, 0]], F)
    assert best_tokens(logits, 3).tolist() == [[1, 2, 4], [0, 1, 2]]


@pytest.mark.parametrize("block", [1, 16, 4095, 4096, 4097, 9000])
def test_blocks_give_the_same_sum(block: int) -> None:
    """One block more and one less than the vocabulary."""
    logits = np.random.default_rng(0).standard_normal((4, 4097)).astype(F) * 5
    exact = np.log(np.exp(logits.astype(np.float64)).sum(axis=1))
    np.testing.assert_allclose(log_sum_exp(logits, block), exact, rtol=1e-6)
    with pytest.raises(AssertionError, match="Mismatched"):  # the planted error: some tokens are forgotten
        np.testing.assert_allclose(log_sum_exp(logits[:, 16:], block), exact, rtol=1e-6)


def test_sums_without_tokens_and_with_nan() -> None:
    banned = np.full((2, 10), -np.inf, F)
    banned[1, 9] = 2
    assert log_sum_exp(banned, 4).tolist() == [-np.inf, 2]
    assert np.isnan(log_sum_exp(np.array([[np.nan, 1]], F), 4)).all()


def test_repetition_lowers_both_signs() -> None:
    logits = np.array([[2, -2, 1, 0]], F)
    found = penalise_repetition(logits, np.array([[0, 1, 0]]), np.array([2], F))
    assert found.tolist() == [[1, -4, 1, 0]]
    assert logits.tolist() == [[2, -2, 1, 0]]


def log_probs(*shares: float) -> np.ndarray:
    return np.log(np.array([shares]) / sum(shares)).astype(F)


@pytest.mark.parametrize("block", [1, 2, 3, 8])
@pytest.mark.parametrize(
    ("uniform", "banned", "token"),
    [(0, [], 0), (0.09, [], 0), (0.11, [], 1), (0.59, [], 2), (0.9999999, [], 3), (0, [0], 1), (0.999, [3, 3], 2)],
)
def test_a_token_is_drawn_in_order_of_ids(block: int, uniform: float, banned: list[int], token: int) -> None:
    """Probabilities 0.1, 0.2, 0.3, 0.4."""
    bans = np.array([banned], np.int64)
    tokens, weights = draw(log_probs(1, 2, 3, 4), bans, np.ones(1, F), np.array([uniform], F), block)
    assert tokens.tolist() == [token]
    allowed = [0 if index in banned else index + 1 for index in range(4)]
    np.testing.assert_allclose(weights[0], np.array(allowed) / sum(allowed), rtol=1e-6)
    if banned:  # the planted error: the others do not sum to 1
        with pytest.raises(AssertionError, match="Mismatched"):
            np.testing.assert_allclose(np.array(allowed) / 10, np.array(allowed) / sum(allowed), rtol=1e-6)


def test_temperature_sharpens() -> None:
    _, weights = draw(log_probs(1, 2), NONE, np.array([0.5], F), np.zeros(1, F), 8)
    np.testing.assert_allclose(weights[0], [0.2, 0.8], rtol=1e-6)
    _, plain = draw(log_probs(1, 2), NONE, np.array([0.501], F), np.zeros(1, F), 8)
    assert abs(plain[0] / [0.2, 0.8] - 1).max() > 1e-6, "the planted error: a temperature of less precision"


def test_all_tokens_banned() -> None:
    _, weights = draw(log_probs(1, 2), np.array([[0, 1]]), np.ones(1, F), np.zeros(1, F), 8)
    assert weights.tolist() == [[0, 0]]


def test_draws_follow_the_probabilities() -> None:
    rng = np.random.default_rng(0)
    count = 20_000
    rows = np.repeat(log_probs(1, 2, 3, 4), count, axis=0)
    tokens, _ = draw(rows, np.zeros((count, 0), np.int64), np.ones(count, F), rng.random(count).astype(F), 3)
    shares = np.bincount(tokens, minlength=4) / count
    np.testing.assert_allclose(shares, [0.1, 0.2, 0.3, 0.4], atol=0.015)
    sharper, _ = draw(rows, np.zeros((count, 0), np.int64), np.full(count, 0.9, F), rng.random(count).astype(F), 3)
    with pytest.raises(AssertionError, match="Mismatched"):  # the planted error: another temperature
        np.testing.assert_allclose(np.bincount(sharper, minlength=4) / count, [0.1, 0.2, 0.3, 0.4], atol=0.015)
