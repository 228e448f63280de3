"""The optimisers: Adam, and Muon for the matrices of the layers with Adam for all else."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from hmc.training.runs.recipe import TrainSection

Groups = list[dict[str, Any]]
"""Parameter groups as PyTorch takes them, each with its `name`."""


class MuonWithAdam(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024) for matrices, Adam for all other parameters.

    Muon makes the singular values of a matrix's momentum nearly equal. Its updates are scaled to the size that those of
    Adam have (Liu et al. 2025, eq. 4), so one learning rate fits both.
    """

    found_inf: Tensor | None = None
    """Not zero: the next step leaves everything as it is. Reading it makes a GPU wait once an update."""

    def __init__(self, groups: Groups, tables: Collection[Tensor], settings: TrainSection) -> None:
        """tables: matrices that are looked up, or give logits; Adam trains them."""
        whole = {id(table) for table in tables}
        matrices, others = list[dict[str, Any]](), list[dict[str, Any]]()
        for group in groups:
            parameters = list(group["params"])
            taken = [p for p in parameters if p.ndim == 2 and id(p) not in whole]
            left = [p for p in parameters if p.ndim != 2 or id(p) in whole]
            matrices += [{**group, "params": taken}] if taken else []
            others += [{**group, "params": left}] if left else []
        adam = adam_of(others, settings)
        parts: list[torch.optim.Optimizer] = [adam]
        if matrices:
            parts.append(
                torch.optim.Muon(
                    matrices,
                    lr=settings.learning_rate,
                    weight_decay=settings.weight_decay,
                    adjust_lr_fn="match_rms_adamw",
                )
            )
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.parts = parts

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Makes one update of both parts."""
        del closure
        if self.found_inf is not None and bool(self.found_inf):
            return
        first = 0
        for part in self.parts:  # state and groups are those of the whole, also after `load_state_dict`
            number = len(part.param_groups)
            part.state, part.param_groups = self.state, self.param_groups[first : first + number]
            first += number
            part.step()


def make_optimizer(groups: Groups, settings: TrainSection, tables: Collection[Tensor] = ()) -> torch.optim.Optimizer:
    """Returns the optimiser of the settings for the parameter groups.

    tables: the embeddings and output matrices among the parameters (`Transformer.tables`).
    """
    return MuonWithAdam(groups, tables, settings) if settings.optimizer == "muon" else adam_of(groups, settings)


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
