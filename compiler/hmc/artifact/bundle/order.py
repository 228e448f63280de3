"""The order of levels: what each takes, what it gives, and which are worth choosing.

Whoever chooses or ranks levels does it by this order: selectors, `auto`, the default level, the advice of a benchmark,
lists, the playground. Time is what was measured. A level without a measured time gets the time of a cost model, and the
standing says so. Quality is measured BLEU. Between levels that were not scored on the same test set, the one with more
parameters counts as the better, and then the one of the more exact precision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Protocol, TypeVar

from hmc.artifact.bundle.manifest import Level, Manifest, Quality
from hmc.artifact.precisions import PRECISIONS
from hmc.artifact.program.counts import SPEEDS, Counts

MAX_LOSS = 0.5
MAX_LOSS_END = 0.9
MAX_KIND_LOSS = 1.2
"""BLEU points that the recommended level loses at most: on average, at the upper end of the interval of that, and on
the kind of text that loses most, where kinds were scored apart (docs/decisions/0039-which-level-is-recommended.md)."""
RULE = f"loses at most {MAX_LOSS:g} BLEU, surely less than {MAX_LOSS_END:g}"
"""The rule in words, after `the fastest that`; `rule` has the bound on kinds of text too."""

MORE_TRAINING = "all heads would gain too by as many updates (`hmc prune --control` trains that control)"
"""What is said of a level that gains."""


# ---- the cost model ----

ROWS = 4
TOKENS = 24
"""The request that the cost model is about: one sentence of so many tokens, with a beam of four."""
OUTPUT_SHARE = 0.3
"""The share of a level's parameters that a vocabulary shortlist does not read."""
OPERATIONS = 3
"""Of a sub-layer: products before and after an attention, and the attention."""


def cost_ms(level: Level) -> float:
    """The cost of a request of one sentence by the speeds of `hmc.artifact.program.counts`, in milliseconds. Only their
    ratios are used: they rank levels.

    It is counted from the manifest, because not every level has a step program. In each step the decoder reads its
    weights for `ROWS` rows; the encoder reads its own once for all tokens. Both are taken to have parameters in
    proportion to their sub-layers. A decoder layer without a head counts as removed.
    """
    traits = PRECISIONS[level.precision]
    layout = level.layout
    encoder = sum(bool(heads) + 1 for heads in layout.encoder_self)
    pairs = zip(layout.decoder_self, layout.cross, strict=True)
    decoder = sum(bool(own) + bool(cross) + 1 for own, cross in pairs if own or cross)
    output = OUTPUT_SHARE * level.parameters
    layer = (level.parameters - output) / max(1, encoder + decoder)
    read = decoder * layer + (0.0 if level.shortlist else output)

    def counts(parameters: float, sub_layers: int, rows: int) -> Counts:
        size = round(parameters * traits.bytes_each)
        products = round(rows * parameters)
        integers = products if traits.quantised else 0
        return Counts(OPERATIONS * sub_layers, size, products - integers, integers)

    speed = SPEEDS[traits.device]
    once = speed.step_s + speed.seconds(counts(encoder * layer, encoder, TOKENS))
    step = speed.step_s + ROWS * speed.row_s + speed.seconds(counts(read, decoder, ROWS))
    return 1000.0 * (once + TOKENS * step)


# ---- the order ----


@dataclass(frozen=True)
class Standing:
    """Time and quality of a level, and how it compares with the other levels."""

    level: Level
    ms: float
    """Of a request of one sentence, as measured, or by the cost model on the scale of the measured levels, of the same
    precision if there are any."""
    timed: bool
    """Whether that was measured, on a machine that was steady."""
    loss: float | None
    """BLEU points that it loses, to two digits as they are printed; negative if it gains. None: not measured, or not
    on the test set of the others."""
    keeps: bool = False
    """Whether its loss was measured and is within the bounds of the recommended level."""
    beaten_by: str = ""
    """The name of a level that is at least as fast and at least as good, and one of the two more. Empty: there is none.
    A level that is beaten is chosen only by its name."""

    @property
    def name(self) -> str:
        """Of the level."""
        return self.level.name

    @property
    def device(self) -> str:
        """The device for which the level is made: cpu or cuda."""
        return PRECISIONS[self.level.precision].device

    def beats(self, other: Standing) -> bool:
        """Whether it runs on the same device, is at least as fast and at least as good, and is faster or better."""
        if self.device != other.device:
            return False
        if self.loss is not None and other.loss is not None:
            better = self.loss < other.loss
            as_good = self.loss <= other.loss
        else:
            better = _size(self.level) > _size(other.level)
            as_good = _size(self.level) >= _size(other.level)
        return self.ms <= other.ms and as_good and (self.ms < other.ms or better)


def order(levels: Sequence[Level]) -> list[Standing]:
    """All levels. First come the levels that no other level beats, from the best to the fastest; then the beaten
    levels, in the same order.

    Among levels that no other level beats, a better level is always slower.
    """
    times, timed = _times(levels)
    scored = _alike({x.name: (x.quality, _test(x.quality)) for x in levels if x.quality})
    standings = []
    for level in levels:
        quality = scored.get(level.name)
        loss = None if quality is None else round(-quality.bleu_delta, 2) + 0.0
        standings.append(Standing(level, times[level.name], level.name in timed, loss, _keeps(quality)))
    standings.sort(key=lambda x: -x.ms)
    for place, one in enumerate(standings):
        better = next((other for other in reversed(standings) if other.beats(one)), None)
        standings[place] = replace(one, beaten_by=better.name if better else "")
    return sorted(standings, key=lambda x: x.beaten_by != "")


def ladder(levels: Sequence[Level]) -> list[Standing]:
    """The levels that no other of them beats, from the best to the fastest."""
    return [standing for standing in order(levels) if not standing.beaten_by]


def recommended(levels: Sequence[Level]) -> Standing:
    """The fastest level whose loss is within the bounds. If no level is within them, or none was scored, the best
    level.

    levels: at least one. If they are for several devices, only the levels for the first one's device count.
    """
    device = PRECISIONS[levels[0].precision].device
    steps = [step for step in ladder(levels) if step.device == device]
    keeping = [step for step in steps if step.keeps]
    return keeping[-1] if keeping else steps[0]


def rule(levels: Iterable[Level]) -> str:
    """The rule in words, as it is about levels that were scored like these: whole, or by kinds of text."""
    by_kind = any(level.quality and level.quality.kinds for level in levels)
    return f"{RULE}, on no kind of text more than {MAX_KIND_LOSS:g}" if by_kind else RULE


def _keeps(quality: Quality | None) -> bool:
    """Whether a loss is within the bounds, to two digits as it is printed."""
    if quality is None:
        return False
    worst = max((-kind.bleu_delta for kind in quality.kinds.values()), default=-quality.bleu_delta)
    losses = (-quality.bleu_delta, -quality.ci_low, worst)
    bounds = (MAX_LOSS, MAX_LOSS_END, MAX_KIND_LOSS)
    return all(round(loss, 2) <= bound for loss, bound in zip(losses, bounds, strict=True))


def recommend(manifest: Manifest) -> None:
    """Makes the recommended level the default one. The result of a search (`hmc compile --max-bleu-drop`) stays: it was
    found within bounds of its own."""
    if "head_search" not in manifest.provenance:
        manifest.default_level = recommended(manifest.levels).name


def why_default(manifest: Manifest) -> str:
    """Why this level is the default, and what was not measured for it. Says also if levels had more training
    (`unfinished`)."""
    return " ".join(filter(None, [_why_default(manifest), unfinished(manifest.levels)]))


def _why_default(manifest: Manifest) -> str:
    name = manifest.default_level
    best = recommended(manifest.levels)
    if name != best.name:
        return f"{name} is the default level, as the search found it."
    if best.loss is None:
        return (
            f"{name} is the default level, the best one by a cost model: nothing is scored yet (`hmc bench --record`)."
        )
    if not best.keeps:
        return f"{name} is the default level, the best one: none {rule(manifest.levels)}."
    timed = "" if best.timed else ", by a cost model: no steady time is recorded (`hmc bench --record`)"
    return f"{name} is the default level, the fastest that {rule(manifest.levels)}{timed}."


class ScoredLevel(Protocol):
    """The known facts about a level, in a bundle or on a server."""

    @property
    def name(self) -> str:
        """Of the level."""

    @property
    def parameters(self) -> int:
        """Of its slim model."""

    @property
    def quality(self) -> Quality | None:
        """None: not measured."""


def unfinished(levels: Iterable[ScoredLevel]) -> str:
    """A sentence about levels that have fewer parameters than the reference level and are better beyond chance. The
    reference level was then not fully trained, and these levels were trained further. Empty if there are no such
    levels."""
    known = {level.name: level for level in levels}
    better = []
    for level in known.values():
        quality = level.quality
        reference = known.get(quality.reference_level) if quality else None
        if quality and reference and level.parameters < reference.parameters and quality.ci_low > 0:
            better.append((f"{level.name} ({quality.bleu_delta:+.1f} BLEU)", reference.name))
    if not better:
        return ""
    names, references = zip(*better, strict=True)
    verb = "is" if len(names) == 1 else "are"
    return (
        f"{', '.join(names)} {verb} better than {references[0]} beyond chance, and had further training: "
        f"{references[0]} was not finished, and {MORE_TRAINING}."
    )


def _size(level: Level) -> tuple[int, int]:
    return level.parameters, -PRECISIONS[level.precision].rank


def _test(quality: Quality) -> Hashable:
    return quality.test_set, quality.sentences, quality.beam, quality.reference_level


def _times(levels: Sequence[Level]) -> tuple[dict[str, float], set[str]]:
    """Milliseconds of every level, and the names of those whose time was measured, with requests as small as any, while
    the machine was steady."""
    least = min((x.latency.batch for x in levels if x.latency), default=1)
    recorded = _alike({
        x.name: (x.latency, (x.latency.beam, x.latency.machine))
        for x in levels
        if x.latency and x.latency.batch == least
    })  # fmt: skip
    times = {name: latency.p50_ms for name, latency in recorded.items() if latency.steady is not False}
    measured = set(times)
    known = [level for level in levels if level.name in recorded]
    for level in levels:
        if level.name not in measured:
            steady = [x for x in known if x.name in measured] or known
            alike = [x for x in steady if x.precision == level.precision] or steady
            scale = median(recorded[x.name].p50_ms / cost_ms(x) for x in alike) if alike else 1.0
            times[level.name] = scale * cost_ms(level)
    return times, measured


Value = TypeVar("Value")


def _alike(measured: dict[str, tuple[Value, Hashable]]) -> dict[str, Value]:
    """Those that were measured alike: the largest group, by the second of each pair; the first such one if two are as
    large."""
    groups = Counter(key for _, key in measured.values())
    if not groups:
        return {}
    [(most, _)] = groups.most_common(1)
    return {name: value for name, (value, key) in measured.items() if key == most}
