"""What changed from one report to another: times with their interval, BLEU with its p-value. B is compared with A."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from rich.console import Group, RenderableType
from rich.table import Table

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.significance import bleu, bleu_statistics, default_seed, difference, p_value
from hmc.benchmark.measure.latency import LatencyResult, median_of
from hmc.benchmark.measure.validity import FEWEST_ROUNDS, Interval, student
from hmc.benchmark.report.results import LevelReport, PeerReport, Report, uncertain
from hmc.benchmark.report.tables import milliseconds, table_of

SIGNIFICANT = 0.05
"""The p-value below which a BLEU difference is not taken for chance."""
NOISE = 0.05
BLEU_NOISE = 0.2
"""Changes up to these are called noise, whatever their interval: two runs of one program differ too."""
Verdict = Literal["worse", "better", "same", "not known"]


@dataclass(frozen=True)
class TimeChange:
    """The time of a request of one system at one setting."""

    system: str
    batch: int
    beam: int
    before_ms: float
    """p50."""
    after_ms: float
    change: float
    """Time in B over time in A, minus 1: the geometric mean over the same requests."""
    interval: Interval
    """95 %, of `change`, over the rounds of both."""
    verdict: Verdict
    beside: str = ""
    """The first system of both reports; empty for that system itself."""
    beside_change: float | None = None
    """As `change`, of the time divided by the time of `beside` in the same round: the machine's speed cancels out."""
    beside_interval: Interval | None = None
    """95 %, of `beside_change`."""


@dataclass(frozen=True)
class BleuChange:
    """BLEU of one system at the headline beam."""

    system: str
    before: float
    after: float
    change: float
    interval: Interval
    p_value: float
    verdict: Verdict


@dataclass(frozen=True)
class Changes:
    """The results that both reports have."""

    times: tuple[TimeChange, ...]
    bleu: tuple[BleuChange, ...]
    warnings: tuple[str, ...]
    """Why the two may differ in more than what is compared."""
    unclear: tuple[str, ...] = ()
    """What may have become worse by more than the noise, as far as its interval says, a phrase each."""

    @property
    def worse(self) -> list[str]:
        """The results that became worse, a phrase each; empty if none did."""
        slower = [
            f"{x.system} at batch {x.batch}, beam {x.beam} takes {x.change:+.1%}"
            for x in self.times
            if x.verdict == "worse"
        ]
        return slower + [f"{x.system} loses {-x.change:.2f} BLEU" for x in self.bleu if x.verdict == "worse"]

    def to_dict(self) -> dict[str, Any]:
        """The changes as values for JSON."""
        return {**asdict(self), "worse": self.worse}


def compare(before: Report, after: Report, *, noise: float = NOISE, bleu_noise: float = BLEU_NOISE) -> Changes:
    """Compares report B, `after`, with report A, `before`.

    noise: share of the time up to which a change is noise; bleu_noise: the same in BLEU points. A time has changed if
    its interval excludes 0 and the change is beyond the noise; BLEU if its p-value is below `SIGNIFICANT` too. A change
    of a time is not known if rounds were not steady or the machine was busy. It is not known either if all systems
    changed alike, because then the machine changed.

    Raises InvalidRequestError if the two timed other sentences, if they have no system and setting in common, and for
    a single round, which has no interval.
    """
    for name, value in (("noise", noise), ("BLEU noise", bleu_noise)):
        if not 0 <= value < float("inf"):
            raise InvalidRequestError(f"{name} {value:g}: choose 0 or more")
    _check_alike(before, after)
    olds = {system.name: system for system in before.systems}
    pairs = [(olds[new.name], new) for new in after.systems if new.name in olds]
    measured: list[tuple[LatencyResult, LatencyResult]] = []
    for old, new in pairs:
        for one, other in product(old.latency, new.latency):
            if (one.batch, one.beam) == (other.batch, other.beam):
                measured.append((one, other))
    busy = before.machine.is_busy or after.machine.is_busy
    shared_by: list[str] = []
    times: list[TimeChange] = []
    for size in dict.fromkeys((new.batch, new.beam) for _, new in measured):
        changes = _changes_at([pair for pair in measured if (pair[1].batch, pair[1].beam) == size], noise)
        if moved := _moved_together(changes):
            shared_by.append(moved)
        times += [_judged(x, change, noise, shared=bool(moved), busy=busy) for x, change in changes]
    if not times:
        raise InvalidRequestError("the two reports have no level at the same batch and beam in common")
    scores = [_bleu_change(old, new, after, bleu_noise) for old, new in pairs if _scored(before, old, after, new)]
    unclear = [
        f"{x.system} at batch {x.batch}, beam {x.beam} ({x.interval.high:+.1%})"
        for x in times
        if x.verdict in ("same", "not known") and x.interval.high > noise
    ]
    unclear += [
        f"{x.system} ({x.interval.low:+.2f} BLEU)"
        for x in scores
        if x.verdict == "same" and x.interval.low < -bleu_noise
    ]
    warnings = shared_by + _warnings(before, after)
    for old, new in pairs:
        warnings += _other_settings(old, new)
    compared = {(change.system, change.batch, change.beam) for change in times}
    gone: list[str] = []
    for system in before.systems:
        sizes = [(at.batch, at.beam) for at in system.latency if (system.name, at.batch, at.beam) not in compared]
        gone += [f"{system.name} at batch {batch}, beam {beam}" for batch, beam in sizes]
    if gone:
        warnings.append(f"Not compared, because only the first has them: {'; '.join(gone)}.")
    if not scores:
        warnings.append("BLEU is not compared: the two have no scores of a level at the same headline beam in common.")
    else:
        scored = {score.system for score in scores}
        if lost := [system.name for system in before.systems if system.quality and system.name not in scored]:
            warnings.append(f"BLEU is not compared for {', '.join(lost)}: the second report has no score there.")
    return Changes(tuple(times), tuple(scores), tuple(warnings), tuple(unclear))


def _check_alike(before: Report, after: Report) -> None:
    old = before.conditions
    new = after.conditions
    if [s.source for s in before.sentences] != [s.source for s in after.sentences]:
        raise InvalidRequestError(
            f"the two reports are of different sentences ({old.test_set}, {old.sentences} and {new.test_set}, "
            f"{new.sentences}): measure both on the same sentences"
        )
    for report, name in ((before, "first"), (after, "second")):
        if report.conditions.rounds < FEWEST_ROUNDS:
            raise InvalidRequestError(
                f"the {name} report has fewer than {FEWEST_ROUNDS} rounds, so its times have no interval: measure "
                f"again with {FEWEST_ROUNDS} rounds or more"
            )


Pair = tuple[LatencyResult, LatencyResult]
"""One system at one setting, in A and in B."""
Logs = npt.NDArray[np.float64]
"""`[R]`: of each round, the mean logarithm of the time of a request."""


def _changes_at(pairs: Sequence[Pair], noise: float) -> list[tuple[TimeChange, Pair]]:
    """The changes of all systems at one setting, by themselves and beside the first of them, with plain verdicts."""
    changes: list[tuple[TimeChange, Pair]] = []
    first = list(map(_round_logs, pairs[:1]))
    for pair in pairs:
        old, new = pair
        own = _round_logs(pair)
        change, interval = _difference(*own)
        shared = min(len(old.samples_ms[0]), len(new.samples_ms[0]))
        plain = TimeChange(
            system=new.level,
            batch=new.batch,
            beam=new.beam,
            before_ms=median_of(np.asarray(old.samples_ms)[:, :shared].ravel().tolist()),
            after_ms=median_of(np.asarray(new.samples_ms)[:, :shared].ravel().tolist()),
            change=change,
            interval=interval,
            verdict=_verdict(change, interval, noise),
        )
        same_rounds = all(len(mine) == len(its) for mine, its in zip(own, first[0], strict=True))
        if changes and same_rounds:
            ratios = [mine - its for mine, its in zip(own, first[0], strict=True)]
            ratio, around = _difference(*ratios)
            plain = replace(plain, beside=changes[0][0].system, beside_change=ratio, beside_interval=around)
        changes.append((plain, pair))
    return changes


def _round_logs(pair: Pair) -> tuple[Logs, Logs]:
    shared = min(len(each.samples_ms[0]) for each in pair)  # requests are in the order of the test set
    old, new = (np.log(np.asarray(each.samples_ms)[:, :shared]).mean(axis=1) for each in pair)
    return old, new


def _difference(old: Logs, new: Logs) -> tuple[float, Interval]:
    """The change from rounds to other rounds, as a share, and its 95 % interval."""
    change = float(new.mean() - old.mean())
    parts = [float(values.var(ddof=1)) / len(values) for values in (old, new)]
    half = student(_welch(parts, [len(old) - 1, len(new) - 1])) * math.sqrt(sum(parts))
    return math.expm1(change), Interval(math.expm1(change - half), math.expm1(change + half))


def _moved_together(pairs: Sequence[tuple[TimeChange, Pair]]) -> str:
    """A sentence where all systems at a setting became slower, or all faster; else an empty text."""
    verdicts = {x.verdict for x, _ in pairs}
    if len(pairs) < 2 or len(verdicts) > 1 or "same" in verdicts:
        return ""
    at = pairs[0][0]
    changes = [x.change for x, _ in pairs]
    return (
        f"At batch {at.batch}, beam {at.beam} all levels take {min(changes):+.1%} to {max(changes):+.1%}: that is the "
        f"machine, or something that all of them share. What is known is their time beside {at.system}."
    )


def _judged(x: TimeChange, pair: Pair, noise: float, *, shared: bool, busy: bool) -> TimeChange:
    """The change with the verdict that stays. shared: all systems changed. busy: one of the two machines was."""
    if x.verdict == "same":
        return x
    alone = x.beside_change is None or x.beside_interval is None
    unsteady = any(at.steadiness.steady is False for at in pair)
    if busy or unsteady or (shared and alone):
        return replace(x, verdict="not known")
    if x.beside_change is not None and x.beside_interval is not None:
        beside = _verdict(x.beside_change, x.beside_interval, noise)
        return replace(x, verdict=x.verdict if beside == x.verdict else "not known")
    return x


def _welch(parts: Sequence[float], freedoms: Sequence[int]) -> float:
    """Degrees of freedom of a sum of variances, by Welch and Satterthwaite."""
    below = sum(part**2 / freedom for part, freedom in zip(parts, freedoms, strict=True))
    return sum(parts) ** 2 / below if below else float(sum(freedoms))


def _verdict(change: float, interval: Interval, noise: float) -> Verdict:
    """Of a change in which more is worse."""
    if abs(change) <= noise or interval.low <= 0 <= interval.high:
        return "same"
    return "worse" if change > 0 else "better"


def _scored(before: Report, old: LevelReport | PeerReport, after: Report, new: LevelReport | PeerReport) -> bool:
    beams = {report.conditions.headline.beam for report in (before, after)}
    return len(beams) == 1 and bool(old.quality) and bool(new.quality)


def _bleu_change(
    old: LevelReport | PeerReport, new: LevelReport | PeerReport, report: Report, noise: float
) -> BleuChange:
    references = [sentence.reference or "" for sentence in report.sentences]
    now = bleu_statistics(new.translations, references)
    then = bleu_statistics(old.translations, references)
    seed = default_seed()
    change = difference(now, then, bleu, seed=seed)
    p = p_value(now, then, bleu, seed=seed)
    interval = Interval(change.low, change.high)
    lost = _verdict(-change.value, Interval(-change.high, -change.low), noise) if p < SIGNIFICANT else "same"
    after = float(bleu(now.sum(axis=0)))
    before = float(bleu(then.sum(axis=0)))
    return BleuChange(new.name, before, after, change.value, interval, p, lost)


def _warnings(before: Report, after: Report) -> list[str]:
    warnings = []
    if str(before.machine) != str(after.machine):
        warnings.append(
            f"The machines differ, and times of two machines say nothing about the program: {before.machine}; "
            f"{after.machine}."
        )
    for name in ("threads", "workers"):
        one, other = (getattr(report.conditions, name) for report in (before, after))
        if one != other:
            warnings.append(f"The number of {name} differs: {one} and {other}.")
    former = [sentence.reference for sentence in before.sentences]
    latter = [sentence.reference for sentence in after.sentences]
    if former != latter and any(former) and any(latter):
        warnings.append("The references differ: BLEU of both is counted with the references of the second report.")
    versions = before.machine.versions, after.machine.versions
    if changed := [name for name in versions[0] if versions[1].get(name) not in (None, versions[0][name])]:
        warnings.append(
            "Versions differ: " + ", ".join(f"{n} {versions[0][n]} → {versions[1][n]}" for n in changed) + "."
        )
    for report, name in ((before, "A"), (after, "B")):
        warnings += [f"{name}: {line}" for line in uncertain(report)]
    return warnings


def _other_settings(old: LevelReport | PeerReport, new: LevelReport | PeerReport) -> list[str]:
    if not (isinstance(old, PeerReport) and isinstance(new, PeerReport)):
        return []
    changed = [at for at, setting in new.settings.items() if old.settings.get(at, setting) != setting]
    listed = "; ".join(f"{at}: {old.settings[at]} → {new.settings[at]}" for at in changed)
    return [f"{new.name} ran at other settings: {listed}."] if changed else []


def tables_of(changes: Changes) -> RenderableType:
    """The changes as tables."""
    first = next((x.beside for x in changes.times if x.beside), "the first level")
    columns = ("batch", "beam", "A p50\nms", "B p50\nms", "change [95 %]", f"beside\n{first}", "")
    times = table_of("Time of a request, B against A", ("level",), columns)
    for x in changes.times:
        row = (str(x.batch), str(x.beam), milliseconds(x.before_ms), milliseconds(x.after_ms))
        beside = _share(x.beside_change, x.beside_interval)
        times.add_row(x.system, *row, _share(x.change, x.interval), beside, _word(x.verdict))
    return Group(times, *([_bleu_table(changes)] if changes.bleu else []), *changes.warnings)


def _share(change: float | None, interval: Interval | None) -> str:
    if change is None or interval is None:
        return ""
    return f"{change:+.1%} [{interval.low:+.1%}, {interval.high:+.1%}]"


def _bleu_table(changes: Changes) -> Table:
    table = table_of("BLEU, B against A", ("level",), ("A", "B", "change [95 %]", "p", ""))
    for x in changes.bleu:
        change = f"{x.change:+.2f} [{x.interval.low:+.2f}, {x.interval.high:+.2f}]"
        table.add_row(x.system, f"{x.before:.2f}", f"{x.after:.2f}", change, f"{x.p_value:.3f}", _word(x.verdict))
    return table


def _word(verdict: Verdict) -> str:
    return "" if verdict == "same" else verdict
