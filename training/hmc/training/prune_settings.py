"""Settings of `hmc prune`."""

from __future__ import annotations

from pydantic import Field

from hmc.training.recipe import RunSection, Section, TrainSection


class PruneSettings(Section):
    """How heads are closed, for every budget in turn: close gates, fix the layout, recover."""

    close_steps: int = Field(default=1500, ge=10)
    """Updates with sampled gates per budget; the budget falls linearly over the first 60 % of them."""
    recover_steps: int = Field(default=1500, ge=0)
    """Updates with the layout fixed, rate falling to zero."""
    learning_rate: float = Field(default=3e-4, gt=0)
    """Of the weights, constant while gates close."""
    gate_rate: float = Field(default=0.1, gt=0)
    """Of log α."""
    initial_log_alpha: float = 2.0
    l0_lambda: float | None = Field(default=None, gt=0)
    """Use the paper's λ·L_C instead of a budget: nats per token per expected open head."""
    batch_tokens: int = Field(default=4096, ge=16)
    dropout: float = Field(default=0.1, ge=0, lt=1)
    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    max_length: int = Field(default=128, ge=4)
    seed: int = 1
    run: RunSection = RunSection()

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
