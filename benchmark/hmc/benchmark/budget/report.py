"""A search for a head budget as a table, as JSON and in words: why nothing was found, and when to mistrust what was."""

from __future__ import annotations

import math
from typing import Any

from rich.table import Table

from hmc.artifact.precisions import PRECISIONS
from hmc.benchmark.budget.search import Candidate, Limits, Search
from hmc.benchmark.report.tables import delta, milliseconds, table_of


def table(search: Search) -> Table:
    """A row for each level that was tried, most heads first."""
    limits = search.limits
    quality = search.tried[0].quality
    sure = "" if limits.confidence == 0 else f" at {percent(limits.confidence)}"
    title = f"Tried on {quality.sentences} sentences of {quality.test_set}, Δ against {quality.reference_level}"
    shown = table_of(title, ("level",), ("heads", "BLEU", "Δ [95 %]", f"loses at\nmost{sure}", "p50\nms"))
    shown.add_column("", no_wrap=True)
    for candidate in search.tried:
        shown.add_row(
            candidate.level,
            str(candidate.heads),
            f"{candidate.quality.bleu:.2f}",
            delta(candidate.quality, candidate.level),
            "–" if candidate.is_reference else f"{max(candidate.loss_at_most, 0.0):.2f}",
            _time(candidate),
            verdict(search, candidate),
        )
    return shown


def verdict(search: Search, candidate: Candidate) -> str:
    """The problem of a candidate in a few words. `keeps`: it has none. `found`: it was chosen."""
    limits = search.limits
    if candidate == search.found and refusal(search) is None:
        return "found"
    wrong = []
    if not candidate.keeps_drop(limits):
        wrong.append("may lose too much" if candidate.loss <= (limits.max_bleu_drop or 0.0) else "loses too much")
    if not candidate.latency_known(limits):
        wrong.append("not known")
    elif not candidate.keeps_latency(limits):
        wrong.append("too slow")
    return ", ".join(wrong) or "keeps"


def to_dict(search: Search, *, latency: bool = True) -> dict[str, Any]:
    """The search as values for JSON.

    latency: False leaves measured times out if the latency is no limit, since they differ from run to run.
    keeps_latency is None where the rounds disagree.
    """
    limits = search.limits
    timed = latency or limits.max_latency_ms is not None
    quality = search.tried[0].quality
    return {
        "max_bleu_drop": limits.max_bleu_drop,
        "max_latency_ms": limits.max_latency_ms,
        "confidence": limits.confidence,
        "test_set": quality.test_set,
        "sentences": quality.sentences,
        "beam": quality.beam,
        "reference_level": quality.reference_level,
        "found": search.found.level if search.found and refusal(search) is None else None,
        "tried": [_tried(candidate, limits, timed=timed) for candidate in search.tried],
    }


def _tried(candidate: Candidate, limits: Limits, *, timed: bool) -> dict[str, Any]:
    """A measured level. timed: with its latency."""
    around = candidate.p50_interval
    row: dict[str, Any] = {
        "level": candidate.level,
        "heads": candidate.heads,
        "bleu": candidate.quality.bleu,
        "bleu_delta": candidate.quality.bleu_delta,
        "ci_low": candidate.quality.ci_low,
        "ci_high": candidate.quality.ci_high,
        "loss_at_most": candidate.loss_at_most,
    }
    if timed:
        row["p50_ms"] = candidate.p50_ms
    if around:
        row |= {"p50_low": around.low, "p50_high": around.high}
    row["keeps_drop"] = candidate.keeps_drop(limits)
    if timed:
        row["keeps_latency"] = candidate.keeps_latency(limits) if candidate.latency_known(limits) else None
    return row


def warning(search: Search) -> str | None:
    """A warning if levels with more heads than the one found lose too much, or if it is not known whether a better one
    keeps the latency; None if BLEU fell evenly and the rounds agreed."""
    if search.found is None:
        return None
    said = []
    if search.passed_over:
        names = ", ".join(c.level for c in search.passed_over)
        said.append(
            f"{search.found.level} keeps the drop though {names} with more heads did not: differences as small as "
            "these are chance. Score it on a second test set before you rely on it"
        )
    if search.not_known:
        said.append(f"{search.found.level} surely keeps the latency. {_not_known(search)}")
    return ". ".join(said) or None


def refusal(search: Search) -> str | None:
    """Why no level was found, and what to do. None: a level was found.

    With a BLEU drop alone, the reference level is not accepted as a result, because it would save nothing.
    """
    limits = search.limits
    candidate = search.found
    if candidate is not None and not (candidate.is_reference and limits.max_latency_ms is None):
        return None
    if search.not_known:
        return _not_known(search)
    fastest = min(search.tried, key=lambda c: c.p50_ms)
    keeping = [c for c in search.tried if c.keeps_drop(limits) and not c.is_reference]
    if limits.max_bleu_drop is None:
        return (
            f"no level answers within {limits.max_latency_ms:g} ms: the fastest found is {fastest.level} with "
            f"{fastest.p50_ms:.1f} ms. Allow more, {_faster(fastest)}or lower --beam"
        )
    if not keeping:
        return _loses_too_much(search)
    smallest = min(keeping, key=lambda c: c.heads)
    return (
        f"latency: {smallest.level} has the fewest heads that keep a drop of {limits.max_bleu_drop:g} BLEU and takes "
        f"{smallest.p50_ms:.1f} ms, more than {limits.max_latency_ms:g}. Allow more of one of the two, "
        f"{_faster(smallest)}or lower --beam (the fastest found is {fastest.level}: {fastest.p50_ms:.1f} ms, up to "
        f"{max(fastest.loss_at_most, 0.0):.2f} BLEU lost)"
    )


def percent(share: float) -> str:
    """0.95 → `95 %`."""
    return f"{100 * share:g} %"


def _not_known(search: Search) -> str:
    """Which levels may or may not keep the latency, and what to do."""
    unknown = ", ".join(f"{c.level} ({_time(c)} ms)" for c in search.not_known)
    return (
        f"latency: not known whether {unknown} {'keep' if len(search.not_known) > 1 else 'keeps'} "
        f"{search.limits.max_latency_ms:g} ms, because the rounds disagree. Compile again while the machine does "
        "nothing else, or allow more"
    )


def _time(candidate: Candidate) -> str:
    """p50, with its interval if it has one."""
    around = candidate.p50_interval
    shown = milliseconds(candidate.p50_ms)
    return f"{shown} [{milliseconds(around.low)}, {milliseconds(around.high)}]" if around else shown


def _faster(candidate: Candidate) -> str:
    """An option that would make such levels faster, as part of a sentence; empty if there is none left."""
    if candidate.precision == "fp32":
        return "add --precision int8, "
    return "" if candidate.shortlist or not PRECISIONS[candidate.precision].shortlists else "add --shortlist, "


def _loses_too_much(search: Search) -> str:
    """No level but the reference keeps the drop. Either too much is lost, or the test set is too small to show it."""
    limits = search.limits
    everything = search.tried[0]
    others = [c for c in search.tried if not c.is_reference]
    if not others:
        return (
            f"{everything.level} has {everything.heads} open head{'s' * (everything.heads != 1)}: there is no level "
            "with fewer heads to search for"
        )
    nearest = min(others, key=lambda c: c.loss_at_most)
    allowed = limits.max_bleu_drop or 0.0
    sentences = nearest.quality.sentences
    sure = "loses" if limits.confidence == 0 else "is sure to lose"
    said = (
        f"BLEU: no level {sure} at most {allowed:g} against {nearest.quality.reference_level}; "
        f"the nearest, {nearest.level}, {'lost' if nearest.loss >= 0 else 'gained'} {abs(nearest.loss):.2f}"
    )
    if nearest.loss < allowed:
        noise = nearest.loss_at_most - nearest.loss
        needed = sentences * (noise / (allowed - nearest.loss)) ** 2
        needed = round(needed, 1 - math.floor(math.log10(needed)))  # two significant figures
        return (
            f"{said}, but on {sentences} sentences the loss may be up to {nearest.loss_at_most:.2f}, at "
            f"{percent(limits.confidence)} confidence. This uncertainty of {noise:.2f} falls with the square root of "
            f"the number of sentences: score about {needed:.0f}, allow a larger drop, or lower --confidence"
        )
    if nearest == everything:
        if everything.shortlist:
            return f"{said} with all its heads: allow a larger drop, or longer lists"
        return f"{said} with all its heads, for its precision alone: allow a larger drop, or leave the precision out"
    return (
        f"{said} as measured, which a longer test set will not change: allow a larger drop, or train the model for "
        "fewer heads with `hmc prune` and its --nested-steps"
    )
