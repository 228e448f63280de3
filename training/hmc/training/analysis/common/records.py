"""What analyses find: the contents of `data` in their results. Reading them needs no PyTorch."""

from __future__ import annotations

import math
from typing import Any

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

from hmc.artifact.model.heads import AttentionKind, Head
from hmc.artifact.significance import Estimate

ORDERS = ("most_important_first", "least_important_first")
Number = int | float


class ResultPart(BaseModel):
    """A part of a result. A field whose default is None is left out of the JSON text where it is None."""

    model_config = ConfigDict(extra="ignore")

    @model_serializer(mode="wrap")
    def _without_missing(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = serialise(self)
        for name, field in type(self).model_fields.items():
            if values[name] is None and not field.is_required():
                del values[name]
        return values


class OfHead(ResultPart):
    """Values of one head."""

    kind: AttentionKind
    layer: int
    index: int

    @property
    def head(self) -> Head:
        """The head, by its index in the unpruned model."""
        return Head(self.kind, self.layer, self.index)


class OfModel(ResultPart):
    """Values of a model. Earlier versions did not always write its shape."""

    layout: dict[str, list[list[int]]] = {}
    """The open heads."""
    heads_per_layer: int = 0
    """Of the unpruned model."""


class MaskScores(ResultPart):
    """Loss and BLEU with some heads masked."""

    loss: Estimate
    bleu: Estimate | None = None
    """None: only the loss was measured, here and in other records."""

    def metric(self, name: str) -> Estimate:
        """Returns `loss`, or `bleu`, which must have been measured."""
        estimate: Estimate = getattr(self, name)
        return estimate


class Deltas(ResultPart):
    """Loss and BLEU minus those with all heads open."""

    delta_loss: Estimate
    delta_bleu: Estimate | None = None


# -- importance and masking ------------------------------------------------------------------------------------------


class HeadImportance(OfHead):
    """I_h of a head."""

    importance: float
    standard_error: float | None = None


class Spread(ResultPart):
    """Values over some heads."""

    heads: int
    mean: float
    variance: float
    least: float
    most: float


class ImportanceData(OfModel):
    """Of `importance`."""

    heads: list[HeadImportance]
    all: Spread
    kinds: dict[AttentionKind, Spread]


class HeadEffect(Deltas, OfHead):
    """The effect of masking a head alone."""


class AblationData(OfModel):
    """Of `ablate`."""

    full: MaskScores
    heads: list[HeadEffect]


class KeptHead(ResultPart):
    """A head that is kept as the only one of its layer."""

    index: int
    delta_loss: Estimate


class LayerHeads(ResultPart):
    """The heads of a layer, each kept alone."""

    kind: AttentionKind
    layer: int
    heads: list[KeptHead]
    best: int
    """Index of the head of least loss."""


class KeptLayer(Deltas, LayerHeads):
    """The heads of a layer, each kept alone, and the effect of keeping the best one."""


class AllButOneData(OfModel):
    """Of `all-but-one`."""

    full: MaskScores
    layers: list[KeptLayer]


class Ranks(ResultPart):
    """Heads of neighbouring ranks, which count from 1."""

    first: int
    last: int
    heads: list[str]

    @property
    def ranks(self) -> str:
        """Such as `1–18`."""
        return f"{self.first}–{self.last}"


class MaskedGroup(Deltas, MaskScores, Ranks):
    """Scores with a group of heads masked."""


class GroupsData(ResultPart):
    """Of `groups`."""

    heads: int
    full: MaskScores
    groups: list[MaskedGroup]


class Masked(ResultPart):
    """A number of heads that are masked."""

    masked: int


class CurvePoint(MaskScores, Masked):
    """Scores with some heads masked; the first point of a curve, where no head is masked, has no differences."""

    delta_loss: Estimate | None = None
    delta_bleu: Estimate | None = None


class CumulativeData(ResultPart):
    """Of `cumulative`."""

    heads: int
    curves: dict[str, list[CurvePoint]]
    """By order, one of ORDERS."""
    gap: dict[str, float]
    """Metric → area between the curves."""

    @property
    def start(self) -> MaskScores:
        """Scores with no head masked."""
        return self.curves[ORDERS[0]][0]


class MaskedShare(ResultPart):
    """A share of the heads that is masked."""

    share: float
    masked: int


class ProfilePoint(MaskScores, MaskedShare):
    """Scores with a share of the heads masked."""

    relative_bleu: Estimate | None
    """BLEU divided by BLEU with all heads; None where that is 0."""

    @property
    def relative(self) -> float:
        """The value of `relative_bleu`; NaN for None."""
        return self.relative_bleu.value if self.relative_bleu else math.nan


class Profile(ResultPart):
    """The pruning profile of a checkpoint."""

    name: str
    points: list[ProfilePoint]


class ProfileData(ResultPart):
    """Of `profile`."""

    shares: list[float]
    checkpoints: list[Profile]


# -- attention -------------------------------------------------------------------------------------------------------


class HeadConfidence(OfHead):
    """Confidence of a head."""

    confidence: float


class ConfidenceData(OfModel):
    """Of `confidence`."""

    heads: list[HeadConfidence]
    sentences_cut: int


class HeadRelevance(OfHead):
    """Relevance of a head, normalised over its layer."""

    relevance: float


class LayerRelevance(ResultPart):
    """Share of the logit's relevance that goes through the heads of a layer."""

    kind: AttentionKind
    layer: int
    through_heads: float


class RelevanceData(OfModel):
    """Of `lrp`."""

    heads: list[HeadRelevance]
    layers: list[LayerRelevance]
    generation_steps: int
    sentences_cut: int
    conservation_error: float


class Role(ResultPart):
    """A role of a head: `positional` with an offset, `syntactic` with a relation and a direction, or `rare words`."""

    role: str
    offset: int | None = None
    relation: str | None = None
    direction: str | None = None


class HeadRoles(OfHead):
    """The roles of a head, and the measurements from which they follow. Those of roles that were not looked for are
    None."""

    roles: list[Role]
    position: dict[str, Number]
    syntax: list[dict[str, Number | str]] | None = None
    rare_words: dict[str, Number] | None = None


class RolesData(OfModel):
    """Of `roles`."""

    heads: list[HeadRoles]
    looked_for: list[str]
    sentences_cut: int
    treebank: dict[str, Any] | None = None
    """`SyntaxCounts.to_json`."""


class AttentionMap(OfHead):
    """All weights of a head for one sentence."""

    queries: list[str]
    keys: list[str]
    weights: list[list[float]]


class MapsData(ResultPart):
    """Of `attention`."""

    maps: list[AttentionMap]
    sentences_cut: int


# -- several texts, systems, checkpoints or runs ---------------------------------------------------------------------


class HeadOnTwoTexts(OfHead):
    """The effect of a head on two texts."""

    first: float
    second: float


class CorrelationData(ResultPart):
    """Of `correlate`."""

    heads: list[HeadOnTwoTexts]
    pearson: Estimate
    spearman: Estimate


class ComparisonData(ResultPart):
    """Of `compare`."""

    analysis: str
    systems: dict[str, Any]
    """Name → the data of its result, which is of `analysis`."""


class MeanAndRange(ResultPart):
    """Mean and extremes of one or more values."""

    mean: float
    least: float
    most: float


class Overlap(ResultPart):
    """Heads that two layouts share, and their number by chance."""

    shared: float
    by_chance: float


class Survivors(ResultPart):
    """Pruned checkpoints with equal numbers of open heads."""

    heads: int
    checkpoints: int
    kinds: dict[AttentionKind, MeanAndRange]
    layers: dict[AttentionKind, list[MeanAndRange]]
    without_heads: MeanAndRange
    """Layers without open heads."""
    agreement: Overlap | None
    """Of two of the checkpoints; None where there is one alone."""
    most_important: Overlap | None = None
    """Of a checkpoint with as many heads of highest I_h."""


class SurvivorsData(ResultPart):
    """Of `survivors`."""

    heads_per_layer: int
    layers: dict[AttentionKind, int]
    layouts: list[dict[str, list[list[int]]]]
    budgets: list[Survivors]


class BundleScores(ResultPart):
    """Scores of a level of a bundle."""

    name: str
    bleu: float
    chrf: float
    bleu_delta: float
    ci_low: float
    ci_high: float
    p_value: float


class SeriesPoint(ResultPart):
    """Levels of a bundle with equal numbers of open heads."""

    heads: int
    bleu: MeanAndRange
    bleu_delta: MeanAndRange
    levels: list[BundleScores]


class BudgetSeries(ResultPart):
    """The levels of a bundle, most heads first."""

    reference_level: str
    points: list[SeriesPoint]


class BudgetsData(ResultPart):
    """Of `budgets`."""

    series: dict[str, BudgetSeries]


class GatePoint(ResultPart):
    """The state of the gates at an update of a closing stage. None: the run has no such gates, or no budget."""

    update: int
    stage: int
    budget: Number | None
    open: Number | None
    unsettled: Number | None
    kinds: dict[AttentionKind, Number | None]
    neurons: Number | None = None
    neuron_budget: Number | None = None
    neurons_unsettled: Number | None = None
    latency_ms: Number | None = None
    latency_budget_ms: Number | None = None


class GateRun(ResultPart):
    """The gates of a run."""

    file: str
    points: list[GatePoint]


class TrajectoryData(ResultPart):
    """Of `trajectory`."""

    runs: dict[str, GateRun]


DATA: dict[str, type[ResultPart]] = {
    "importance": ImportanceData,
    "ablate": AblationData,
    "all-but-one": AllButOneData,
    "groups": GroupsData,
    "cumulative": CumulativeData,
    "profile": ProfileData,
    "confidence": ConfidenceData,
    "lrp": RelevanceData,
    "roles": RolesData,
    "attention": MapsData,
    "correlate": CorrelationData,
    "survivors": SurvivorsData,
    "budgets": BudgetsData,
    "trajectory": TrajectoryData,
    "compare": ComparisonData,
}
"""Command → the data of its results."""
