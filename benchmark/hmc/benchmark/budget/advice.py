"""What a search has to say in words: why nothing was found and what to do, and when to mistrust what was found."""

from __future__ import annotations

import math

from hmc.artifact.precisions import PRECISIONS
from hmc.benchmark.budget.search import Candidate, Search


def warning(search: Search) -> str | None:
    """A warning if levels with more heads than the one found lose too much; None if BLEU fell evenly."""
    if not search.passed_over or search.found is None:
        return None
    names = ", ".join(c.level for c in search.passed_over)
    return (
        f"{search.found.level} keeps the drop though {names} with more heads did not: differences as small as these "
        "are chance. Score it on a second test set before you rely on it"
    )


def refusal(search: Search) -> str | None:
    """Why nothing was found, and what to do; None if something was found.

    With a BLEU drop alone, the reference level with all its heads is no answer: it would save nothing.
    """
    limits, found = search.limits, search.found
    if found is not None and not (found.is_reference and limits.max_latency_ms is None):
        return None
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


def _faster(candidate: Candidate) -> str:
    """An option that would make such levels faster, as part of a sentence; empty if there is none left."""
    if candidate.precision == "fp32":
        return "add --precision int8, "
    return "" if candidate.shortlist or not PRECISIONS[candidate.precision].shortlists else "add --shortlist, "


def _loses_too_much(search: Search) -> str:
    """No level but the reference keeps the drop. Either too much is lost, or the test set is too small to show it."""
    limits, everything = search.limits, search.tried[0]
    others = [c for c in search.tried if not c.is_reference]
    if not others:
        return (
            f"{everything.level} has {everything.heads} open head{'s' * (everything.heads != 1)}: there is no level "
            "with fewer heads to search for"
        )
    nearest = min(others, key=lambda c: c.loss_at_most)
    allowed, sentences = limits.max_bleu_drop or 0.0, nearest.quality.sentences
    said = (
        f"BLEU: no level is sure to lose at most {allowed:g} against {nearest.quality.reference_level}; "
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
