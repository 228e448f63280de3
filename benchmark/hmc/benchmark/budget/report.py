"""A search for a head budget as a table and as JSON."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from hmc.benchmark.budget.advice import percent, refusal
from hmc.benchmark.budget.search import Candidate, Search
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
            milliseconds(candidate.p50_ms),
            verdict(search, candidate),
        )
    return shown


def verdict(search: Search, candidate: Candidate) -> str:
    """What is wrong with a candidate in a few words; `keeps` if nothing is, `found` if it was chosen."""
    limits = search.limits
    if candidate == search.found and refusal(search) is None:
        return "found"
    wrong = []
    if not candidate.keeps_drop(limits):
        wrong.append("may lose too much" if candidate.loss <= (limits.max_bleu_drop or 0.0) else "loses too much")
    if not candidate.keeps_latency(limits):
        wrong.append("too slow")
    return ", ".join(wrong) or "keeps"


def to_dict(search: Search, *, latency: bool = True) -> dict[str, Any]:
    """The search as values for JSON.

    latency False leaves measured times out where they are no limit, since they differ from run to run.
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
        "tried": [
            {
                "level": c.level,
                "heads": c.heads,
                "bleu": c.quality.bleu,
                "bleu_delta": c.quality.bleu_delta,
                "ci_low": c.quality.ci_low,
                "ci_high": c.quality.ci_high,
                "loss_at_most": c.loss_at_most,
                **({"p50_ms": c.p50_ms} if timed else {}),
                "keeps_drop": c.keeps_drop(limits),
                **({"keeps_latency": c.keeps_latency(limits)} if timed else {}),
            }
            for c in search.tried
        ],
    }
