"""Relevance from the output of one operation to its inputs (Voita et al. 2019, appendix A.2; Bach et al. 2015).

An output neuron v = Σ_u W_uv·u divides its relevance among its inputs u. Definition 3 of Voita et al. gives input u
the share W_uv·u / Σ W_u'v·u'. This grows without bound where contributions W_uv·u cancel each other: in the embedded
demo model the relevance of single heads then reaches 10⁸ times the logit. Contributions are therefore divided by sign,
as in Bach et al. 2015, eq. 60, with α = β = 1/2, the values in the program of Voita et al. Positive contributions get
one half of the relevance, in proportion; negative ones get the other half. If all have one sign, this is Definition 3.

Four rules keep the sum of relevances the same everywhere, up to rounding and without a stabiliser:

* A bias gets no relevance, and the sums of contributions do not include it.
* If no contribution has one of the signs, the other sign gets the whole relevance.
* If all contributions are 0, all inputs get equal shares. In a residual connection the residual gets everything.
* Relevance goes unchanged through non-linear functions: the activation function, the softmax, and the statistics of
  layer norm. Attention weights thus count as the W of a weighted sum of values (as in Ding et al. 2017), and queries
  and keys get nothing. Layer norm is a scale and a shift of each neuron.
"""

from __future__ import annotations

import torch
from torch import Tensor


def divide_by_sign(relevance: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Relevance per unit of positive contribution, per unit of negative one, and that of outputs without either.

    positive, negative: sums of the contributions of either sign (≥ 0 and ≤ 0), broadcastable to `relevance`.
    """
    has_positive, has_negative = positive > 0, negative < 0
    part = torch.where(has_positive & has_negative, 0.5, 1.0).to(positive.dtype)
    per_positive = torch.where(has_positive, part / positive, 0.0)
    per_negative = torch.where(has_negative, part / negative, 0.0)
    left = torch.where(has_positive | has_negative, 0.0, 1.0).to(positive.dtype)
    return relevance * per_positive, relevance * per_negative, relevance * left


def through_linear(relevance: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """y = W x (+ bias): relevance of y `[N, T, out]`, x `[T, in]`, weight `[out, in]` → relevance of x `[N, T, in]`."""
    x_up, x_down = x.clamp(min=0), x.clamp(max=0)
    w_up, w_down = weight.clamp(min=0), weight.clamp(max=0)
    positive = x_up @ w_up.T + x_down @ w_down.T  # [T, out]
    negative = x_up @ w_down.T + x_down @ w_up.T
    per_positive, per_negative, left = divide_by_sign(relevance, positive, negative)
    shared = x_up * (per_positive @ w_up + per_negative @ w_down) + x_down * (
        per_positive @ w_down + per_negative @ w_up
    )
    return shared + left.sum(-1, keepdim=True) / x.size(-1)


def through_sum(relevance: Tensor, residual: Tensor, update: Tensor) -> tuple[Tensor, Tensor]:
    """y = residual + update, neuron by neuron; every tensor `[…, T, d]`. Relevances of both."""
    positive = residual.clamp(min=0) + update.clamp(min=0)
    negative = residual.clamp(max=0) + update.clamp(max=0)
    per_positive, per_negative, left = divide_by_sign(relevance, positive, negative)
    kept, updated = (z.clamp(min=0) * per_positive + z.clamp(max=0) * per_negative for z in (residual, update))
    return kept + left, updated


def through_attention(relevance: Tensor, weights: Tensor, values: Tensor) -> Tensor:
    """o_t = Σ_s a_ts v_s per head and dimension: relevance of o `[N, H, T, D]`, weights `[H, T, S]`, values
    `[H, S, D]` → relevance of the values `[N, H, S, D]`."""
    v_up, v_down = values.clamp(min=0), values.clamp(max=0)
    per_positive, per_negative, left = divide_by_sign(relevance, weights @ v_up, weights @ v_down)
    back = weights.transpose(-1, -2)  # [H, S, T]
    shared = v_up * (back @ per_positive) + v_down * (back @ per_negative)
    # Equal shares among the positions that a query may look at.
    visible = (weights > 0).to(weights.dtype)
    equal = visible / visible.sum(-1, keepdim=True)
    return shared + equal.transpose(-1, -2) @ left


def through_product(relevance: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """y = w · x, one output (a logit): relevance `[N, T]`, x `[T, d]`, weight `[T, d]` → `[N, T, d]`."""
    z = x * weight
    per_positive, per_negative, left = divide_by_sign(relevance, z.clamp(min=0).sum(-1), z.clamp(max=0).sum(-1))
    shared = z.clamp(min=0) * per_positive[..., None] + z.clamp(max=0) * per_negative[..., None]
    return shared + left[..., None] / x.size(-1)
