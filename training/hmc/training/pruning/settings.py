"""Settings of `hmc prune`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import Field, ValidationError, field_validator

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.heads import KINDS, AttentionKind
from hmc.training.distillation.settings import DistillSection
from hmc.training.runs.recipe import OptimizerName, Precision, RunSection, TokenizerSection, TrainSection
from hmc.training.section import Section

if TYPE_CHECKING:
    from hmc.training.data.corpus import Splitting

LEAST_STEPS = 50
MOST_STEPS = 1500
"""Updates of a stage by default: a quarter of those of the checkpoint's own training, within these bounds."""


class NestedSection(Section):
    """Nested fine-tuning: one set of weights for several head budgets, which are its levels."""

    levels: Literal["one", "sandwich", "smallest"] = "sandwich"
    """Levels that an update trains. one: one of them, drawn uniformly. sandwich: the largest, the smallest and one
    between, whose gradients are added (Yu & Huang 2019, section 3.2). smallest: that one alone, which is then the only
    one that is scored."""
    between: Literal["budgets", "any"] = "budgets"
    """The level between: one of the budgets, or any number of heads from the smallest to the largest."""
    teacher: Literal["frozen", "in-place"] = "frozen"
    """With `distill`: levels learn from a frozen teacher, or from the largest level in the same update (Yu & Huang
    2019, section 3.4), which itself learns from the text alone."""
    shrink: Annotated[float, "SHARE"] = Field(default=0.0, ge=0, le=0.9)
    """First share of the updates, over which the number of heads of every level falls linearly from all heads."""
    heads: Literal["checkpoints", "gates", "importance", "both"] = "checkpoints"
    """What ranks the heads. checkpoints: how many of the pruned checkpoints kept them, then log α. The others need no
    closing stages: log α of the source (gates), its importance (Michel et al. 2019), or the mean of both ranks."""


class PruneSettings(Section):
    """How heads and neurons are closed. Every budget has two stages: gates close, then weights recover."""

    close_steps: int | None = Field(default=None, ge=10)
    """Updates for each budget in which gates close. The budget falls linearly over the first 60 %; in the last 30 %
    gates are pressed to decide. Default: a quarter of the checkpoint's updates, 50 to 1,500."""
    recover_steps: int | None = Field(default=None, ge=0)
    """Updates for each budget after the gates have closed: the heads no longer change, and the learning rate falls
    linearly to zero. Default: as for `close_steps`."""
    learning_rate: float = Field(default=3e-4, gt=0)
    """Learning rate of the weights; constant while gates close."""
    optimizer: OptimizerName = "adam"
    """adam; or muon, which is Muon for the matrices of the layers and Adam for all else. Gates are always Adam's."""
    warmup_steps: int = Field(default=1, ge=1)
    """First updates of the run, over which the learning rate of the weights rises linearly."""
    gate_rate: float = Field(default=0.1, gt=0)
    """Learning rate of log α. It is raised when close_steps are too few for a gate to move from open to closed."""
    initial_log_alpha: float = 2.0
    """log α that gates start at."""
    l0_lambda: float | None = Field(default=None, gt=0)
    """Instead of budgets: the λ of Voita et al. 2019, in nats per token and expected open head. The objective is the
    paper's, L_xent + λ · Σ(1 - P(g = 0)), and nothing more; some gates may stay undecided."""
    settle_gates: bool = False
    """With `l0_lambda`: add what budgets always have. In the last 30 % of closing, gates are pressed to decide; in the
    last 15 % the decision is fixed and every log α moves to its end."""
    scope: tuple[AttentionKind, ...] = Field(default=KINDS, min_length=1)
    """Kinds whose heads get gates; heads of other kinds stay open (Voita et al. 2019, 6.2: encoder_self alone)."""
    freeze: Literal["encoder", "decoder", "matrices"] | None = None
    """Stack whose weights do not change, nor the embeddings that both stacks share. Gates and masks still act on it.
    Voita et al. 2019, 6.2, freeze the decoder, so that functions of encoder heads cannot move there. matrices: only
    layer norms and biases learn."""
    batch_tokens: int = Field(default=4096, ge=16)
    """Source and target tokens of a batch, padding included: twice its rows × its longest side."""
    accumulate: int = Field(default=1, ge=1)
    """Batches in one update; their gradients are summed."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Share of activations dropped while training."""
    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    max_length: Annotated[int, "TOKENS"] = Field(default=128, ge=4)
    """Longest sentence used for training, in tokens with EOS; longer pairs are left out, and counted."""
    bpe_dropout: float | None = Field(default=None, ge=0, lt=1)
    """Probability of skipping a BPE merge in training text. Default: that of the recipe of the checkpoint, or 0."""
    bpe_dropout_copies: int | None = Field(default=None, ge=1)
    """Segmentations that BPE-dropout draws of each pair. Default: that of the recipe of the checkpoint, or 8."""
    seed: int = Field(default=1, ge=0, le=2**32 - 1)
    """Seed of gates, batches and dropout."""
    distill: DistillSection = DistillSection()
    """What is learned from a teacher; by default the checkpoint that is pruned."""
    nested: NestedSection = NestedSection()
    """How nested fine-tuning goes."""
    run: RunSection = RunSection()
    """How the run is carried out. `precision` that is not set is that of the checkpoint's recipe (`following`)."""

    @field_validator("scope")
    @classmethod
    def _in_order(cls, value: tuple[AttentionKind, ...]) -> tuple[AttentionKind, ...]:
        return tuple(kind for kind in KINDS if kind in value)

    def train_section(self, steps: int) -> TrainSection:
        """Returns the settings of the training loop for a run of `steps` updates."""
        return TrainSection(
            steps=max(steps, 1),
            batch_tokens=self.batch_tokens,
            accumulate=self.accumulate,
            optimizer=self.optimizer,
            learning_rate=self.learning_rate,
            warmup_steps=1,
            dropout=self.dropout,
            label_smoothing=self.label_smoothing,
            seed=self.seed,
        )

    def warmed(self, rate: float, update: int) -> float:
        """Returns the learning rate of the weights at an update of the run (from 1), scaled by the warm-up."""
        return rate * min(1.0, update / self.warmup_steps)

    def warmup_problems(self, steps: int) -> list[str]:
        """Returns warnings about the warm-up of a run of `steps` updates."""
        if self.warmup_steps <= steps:
            return []
        return [
            f"the {steps:,} updates end before the warm-up does (--warmup-steps {self.warmup_steps:,}): the learning "
            "rate never reaches --learning-rate"
        ]

    def steps_of(self, kind: Literal["close", "recover"]) -> int:
        """Returns the updates of a stage."""
        steps = self.close_steps if kind == "close" else self.recover_steps
        return MOST_STEPS if steps is None else steps

    def following(self, provenance: dict[str, Any]) -> PruneSettings:
        """Fills in settings that are not given, from the provenance of the checkpoint that is pruned.

        BPE-dropout and precision come from its recipe. If the device has no products of bf16, the precision is fp32.
        Each stage gets a quarter of the updates that the checkpoint was trained with, from `LEAST_STEPS` to
        `MOST_STEPS`: a short try is not followed by a long pruning. A checkpoint that says nothing has no BPE-dropout,
        fp32 and `MOST_STEPS`.

        Raises InvalidRequestError for a number of segmentations without BPE-dropout.
        """
        from hmc.training.runs.processes import computes_bf16  # loads PyTorch

        settings = self._with_subwords_of(provenance)
        updates = _own_updates(provenance)
        steps = MOST_STEPS if updates is None else min(MOST_STEPS, max(LEAST_STEPS, round(updates / 4)))
        more: dict[str, Any] = {name: steps for name in ("close_steps", "recover_steps") if getattr(self, name) is None}
        precision = None if "precision" in self.run.model_fields_set else _own_precision(provenance)
        if precision == "32-true" or (precision and computes_bf16(self.run)):
            more["run"] = self.run.model_copy(update={"precision": precision})
        return settings.model_copy(update=more)

    def _with_subwords_of(self, provenance: dict[str, Any]) -> PruneSettings:
        tokenizer = _recipe_tokenizer(provenance)
        dropout = tokenizer.bpe_dropout if self.bpe_dropout is None else self.bpe_dropout
        if not dropout and (self.bpe_dropout_copies or 1) > 1:
            raise InvalidRequestError(
                f"bpe_dropout_copies {self.bpe_dropout_copies} belongs to bpe_dropout: give its probability, such "
                "as 0.1, or leave bpe_dropout_copies out"
            )
        copies = (self.bpe_dropout_copies or tokenizer.bpe_dropout_copies) if dropout else 1
        return self.model_copy(update={"bpe_dropout": dropout, "bpe_dropout_copies": copies})

    def segmentation(self) -> Splitting:
        """Returns how training text is split into tokens."""
        from hmc.training.data.corpus import Splitting

        if not self.bpe_dropout:
            return Splitting()
        return Splitting(self.bpe_dropout, self.bpe_dropout_copies or 1, self.seed)


def _ancestors(provenance: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yields how a checkpoint was made, how its source was, and so on: the provenance, and the recipe in it, if any."""
    source: Any = provenance
    while isinstance(source, dict):
        recipe = source.get("recipe")
        yield source, recipe if isinstance(recipe, dict) else {}
        source = source.get("from")


def _own_updates(provenance: dict[str, Any]) -> int | None:
    """Returns the updates that a checkpoint, or the one that it was pruned from, was trained with. None: unknown."""
    for source, recipe in _ancestors(provenance):
        train = recipe.get("train")
        asked = train.get("steps") if isinstance(train, dict) else None
        for number in (source.get("updates"), source.get("step"), asked):
            if isinstance(number, int) and number > 0:
                return number
    return None


def _own_precision(provenance: dict[str, Any]) -> str | None:
    """Returns the precision that a checkpoint, or the one that it was pruned from, was trained at. None: unknown."""
    for _, recipe in _ancestors(provenance):
        run = recipe.get("run")
        if isinstance(run, dict) and run.get("precision") in get_args(Precision):
            return str(run["precision"])
    return None


def _recipe_tokenizer(provenance: dict[str, Any]) -> TokenizerSection:
    """Returns the tokenizer settings that a checkpoint was trained or pruned with."""
    for source, recipe in _ancestors(provenance):
        pruned = source.get("settings")
        tokenizer: object = recipe.get("tokenizer")
        if isinstance(pruned, dict) and "bpe_dropout" in pruned:
            # Without BPE-dropout one copy was stored, which says nothing about how many to draw with it.
            names = ("bpe_dropout", "bpe_dropout_copies") if pruned["bpe_dropout"] else ("bpe_dropout",)
            tokenizer = {name: pruned.get(name) for name in names}
        if tokenizer is not None:
            try:
                return TokenizerSection.model_validate(tokenizer)
            except ValidationError:
                return TokenizerSection()  # another program wrote the provenance
    return TokenizerSection()
