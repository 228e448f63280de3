"""Settings of `hmc prune`."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator

from hmc.artifact.heads import KINDS, Kind
from hmc.training.recipe import RunSection, Section, TrainSection


class PruneSettings(Section):
    """How heads are closed, for every budget in turn: close gates, fix the layout, recover."""

    close_steps: int = Field(default=1500, ge=10)
    """Updates with sampled gates per budget: over the first 60 % the budget falls linearly, in the last 30 % gates are
    pressed to decide."""
    recover_steps: int = Field(default=1500, ge=0)
    """Updates with the layout fixed, rate falling to zero."""
    learning_rate: float = Field(default=3e-4, gt=0)
    """Of the weights, constant while gates close."""
    gate_rate: float = Field(default=0.1, gt=0)
    """Of log α; raised where close_steps are too few for a gate to travel from open to closed."""
    initial_log_alpha: float = 2.0
    l0_lambda: float | None = Field(default=None, gt=0)
    """Use the paper's λ·L_C instead of a budget: nats per token per expected open head."""
    scope: tuple[Kind, ...] = Field(default=KINDS, min_length=1)
    """Kinds that get gates; heads of the others stay as they are (Voita et al. 2019, 6.2: encoder_self alone)."""
    freeze: Literal["encoder", "decoder"] | None = None
    """Stack whose weights do not change, with the embeddings that both stacks share; gates and masks act on it all the
    same. Voita et al. 2019, 6.2: the decoder, so that functions of encoder heads cannot move there."""
    batch_tokens: int = Field(default=4096, ge=16)
    dropout: float = Field(default=0.1, ge=0, lt=1)
    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    max_length: int = Field(default=128, ge=4)
    seed: int = Field(default=1, ge=0, le=2**32 - 1)
    run: RunSection = RunSection()

    @field_validator("scope")
    @classmethod
    def _in_order(cls, value: tuple[Kind, ...]) -> tuple[Kind, ...]:
        return tuple(kind for kind in KINDS if kind in value)

    def train_section(self, steps: int) -> TrainSection:
        """The same settings as the training loop wants them."""
        return TrainSection(
            steps=max(steps, 1),
            batch_tokens=self.batch_tokens,
            learning_rate=self.learning_rate,
            warmup_steps=1,
            dropout=self.dropout,
            label_smoothing=self.label_smoothing,
            seed=self.seed,
        )


def same_request(stored: str, request: dict[str, Any], settings: PruneSettings) -> bool:
    """True when `stored` (request.json, perhaps by an earlier version with fewer settings) asks for the same.

    How a run is carried out (`settings.run`) does not count; settings that `stored` does not have are their defaults,
    `dev` and `nested_steps` that it does not have are these. Nested fine-tuning may be left out, or come later.
    """
    try:
        former = json.loads(stored)
        former_settings = PruneSettings.model_validate(former.pop("settings"))
    except (json.JSONDecodeError, AttributeError, KeyError, TypeError, ValidationError):
        return False
    former = {"dev": request["dev"]} | former
    if not (former.get("nested_steps") and request["nested_steps"]):
        former["nested_steps"] = request["nested_steps"]
    return former == request and former_settings.model_copy(update={"run": settings.run}) == settings
