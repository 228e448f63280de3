"""The optimisers: Adam, and Muon for the matrices of the layers with Adam for all else."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

import torch
from torch import Tensor

from hmc.training.model.transformer import Transformer
from hmc.training.runs.recipe import TrainSection

Groups = list[dict[str, Any]]
"""Parameter groups as PyTorch takes them, each with its `name`."""


MOMENTUM = 0.95
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic iteration (Jordan et al. 2024)."""


class MuonWithAdam(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024) for matrices, Adam for all other parameters.

    Muon makes the singular values of a matrix's momentum nearly equal. Its updates are scaled to the size of Adam's
    updates (Liu et al. 2025, eq. 4), so one learning rate fits both. Updates equal those of `torch.optim.Muon`, but are
    computed for all matrices of a shape at once: a GPU starts some twenty operations a shape, not a matrix.

    Heads without a gradient take no step, nor do matrices without any: `torch.optim.Muon` moves a masked head for some
    80 updates by full steps, and a layer whose gate is closed for hundreds, in which the rest of the model changes
    without them.
    """

    found_inf: Tensor | None = None
    """Not zero: the next step leaves everything as it is. No GPU waits for it."""

    def __init__(
        self, groups: Groups, tables: Collection[Tensor], heads: Collection[Tensor], settings: TrainSection
    ) -> None:
        """tables: matrices that are looked up, or give logits; Adam trains them. heads: matrices whose rows or columns
        belong to heads."""
        whole = set(map(id, tables))
        self.heads = set(map(id, heads))
        matrices = list[dict[str, Any]]()
        others = list[dict[str, Any]]()
        for group in groups:
            parameters = list(group["params"])
            taken = [p for p in parameters if p.ndim == 2 and id(p) not in whole]
            rest = [p for p in parameters if p.ndim != 2 or id(p) in whole]
            matrices += [{**group, "params": taken}] if taken else []
            others += [{**group, "params": rest}] if rest else []
        self.adam = adam_of(others, settings)
        super().__init__(
            [*self.adam.param_groups, *matrices],
            {"lr": settings.learning_rate, "weight_decay": settings.weight_decay},
        )

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Makes one update of both parts."""
        del closure
        first = len(self.adam.param_groups)  # state and groups are those of the whole, also after `load_state_dict`
        self.adam.state = self.state
        self.adam.param_groups = self.param_groups[:first]
        self.adam.found_inf = self.found_inf  # type: ignore[attr-defined]
        self.adam.step()
        for group in self.param_groups[first:]:
            alike = dict[tuple[torch.Size, bool], list[Tensor]]()
            for matrix in group["params"]:
                if matrix.grad is not None:
                    alike.setdefault((matrix.shape, id(matrix) in self.heads), []).append(matrix)
            for (_, of_heads), matrices in alike.items():
                self._update(matrices, group["lr"], group["weight_decay"], of_heads)

    def _update(self, matrices: list[Tensor], rate: float, decay: float, of_heads: bool) -> None:
        """Changes matrices of one shape, all or none of which are of heads."""
        for matrix in matrices:
            if "momentum_buffer" not in self.state[matrix]:
                self.state[matrix]["momentum_buffer"] = torch.zeros_like(matrix)
        momenta = [self.state[matrix]["momentum_buffer"] for matrix in matrices]
        kept = torch.ones((), device=matrices[0].device) if self.found_inf is None else 1 - self.found_inf
        gradient = torch.stack([cast(Tensor, matrix.grad) for matrix in matrices])
        gradient = torch.where(gradient.isfinite(), gradient, 0.0)  # NaN × 0 is NaN, where nothing shall change
        momentum = torch.stack(momenta).lerp_(gradient, (1 - MOMENTUM) * kept)
        torch._foreach_copy_(momenta, list(momentum.unbind()))
        scale = -rate * 0.2 * max(matrices[0].shape) ** 0.5
        has_gradient = gradient != 0
        rows = has_gradient.any(2, keepdim=True)
        columns = has_gradient.any(1, keepdim=True)
        moved = kept * (rows & columns if of_heads else rows.any(1, keepdim=True).expand_as(gradient))
        change = orthogonal(gradient.lerp_(momentum, MOMENTUM)).float() * (scale * moved)
        if decay:
            torch._foreach_mul_(matrices, list((1 - rate * decay * moved).unbind()))
        torch._foreach_add_(matrices, list(change.unbind()))


def orthogonal(stack: Tensor) -> Tensor:
    """`[N, R, C]` → each matrix with nearly equal singular values, in bf16, by five Newton–Schulz iterations."""
    linear, cubic, quintic = NEWTON_SCHULZ
    tall = stack.size(1) > stack.size(2)
    x = (stack.mT if tall else stack).bfloat16()
    x = x / x.float().flatten(1).norm(dim=1).clamp(min=1e-7)[:, None, None].to(x.dtype)
    for _ in range(5):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=cubic, alpha=quintic), x, beta=linear)
    return x.mT if tall else x


def make_optimizer(groups: Groups, settings: TrainSection, model: Transformer | None = None) -> torch.optim.Optimizer:
    """Returns the optimiser of the settings for the parameter groups.

    model: the owner of the parameters. It says which are tables, and which matrices belong to heads.
    """
    if settings.optimizer != "muon":
        return adam_of(groups, settings)
    tables, heads = (model.tables, model.head_matrices) if model else ([], [])
    return MuonWithAdam(groups, tables, heads, settings)


def adam_of(groups: Groups, settings: TrainSection) -> torch.optim.Adam:
    """Returns Adam for the parameter groups, with decoupled weight decay where the settings have any."""
    return torch.optim.Adam(
        groups,
        lr=settings.learning_rate,
        betas=settings.adam_betas,
        eps=settings.adam_epsilon,
        weight_decay=settings.weight_decay,
        decoupled_weight_decay=settings.weight_decay > 0,
        fused=True,
    )
