"""Results of one analysis for several systems side by side (Sun et al. 2021, figures 3 to 5, tables 5 and 6)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hmc.artifact.errors import InvalidRequestError
from hmc.training.analysis.common.result import ORDERS, WITHIN, Result, masked_within, read_result
from hmc.training.analysis.common.summary import Summary, interval, plain

COMMAND = "compare"
COMPARABLE = ("importance", "groups", "cumulative")


def parse_names(arguments: Sequence[str]) -> dict[str, Path]:
    """Arguments `NAME=FILE` → {name: path}. `FILE` without a name is named after its folder.

    Raises InvalidRequestError for an empty name and for a name that occurs twice.
    """
    found: dict[str, Path] = {}
    for argument in arguments:
        name, equals, rest = argument.partition("=")
        path = Path(rest if equals else argument)
        name = name if equals else path.parent.name
        if not name or name in found:
            raise InvalidRequestError(
                f"{argument}: write NAME=FILE with a name that no other argument has, e.g. baseline={path}"
            )
        found[name] = path
    return found


def analyse(files: Mapping[str, Path]) -> Result:
    """Reads two or more results of the same analysis on the same text, {name: path}.

    Raises InvalidRequestError for files that cannot be read or compared.
    """
    if len(files) < 2:
        raise InvalidRequestError("give two or more results, e.g. baseline=a/importance.json random=b/importance.json")
    results = {name: read_result(path, COMPARABLE) for name, path in files.items()}
    commands = {name: result.command for name, result in results.items()}
    if len(set(commands.values())) > 1:
        listed = ", ".join(f"{name} is of {command}" for name, command in commands.items())
        raise InvalidRequestError(f"results of different analyses: {listed}; compare one kind at a time")
    texts = {name: [corpus.sha256 for corpus in result.corpora] for name, result in results.items()}
    if len({tuple(text) for text in texts.values()}) > 1:
        listed = ", ".join(f"{name} on {', '.join(c.name for c in result.corpora)}" for name, result in results.items())
        raise InvalidRequestError(f"results on different sentences ({listed}): they cannot be compared")
    how = {name: _how(result) for name, result in results.items()}
    for key in next(iter(how.values())):
        found = {name: settings[key] for name, settings in how.items()}
        if len({value for value in found.values() if value is not None}) > 1:
            listed = ", ".join(f"{name} has {value}" for name, value in found.items())
            raise InvalidRequestError(f"results with different {key} ({listed}): they cannot be compared")
    first = next(iter(results.values()))
    if first.command == "groups" and len({tuple(_ranks(result.data)) for result in results.values()}) > 1:
        raise InvalidRequestError("results with groups of different sizes; run groups with the same --groups for each")
    return Result(
        command=COMMAND,
        checkpoints=[source for result in results.values() for source in result.checkpoints],
        corpora=first.corpora,
        settings={name: result.settings for name, result in results.items()},
        data={"analysis": first.command, "systems": {name: result.data for name, result in results.items()}},
    )


def _how(result: Result) -> dict[str, Any]:
    """What must be equal in results that are compared; None is unknown, or does not matter."""
    settings = result.settings
    rank = result.settings.get("rank", {})
    return {
        "importance": settings.get("importance"),
        "rankings": rank.get("by"),
        "importance in the ranking": rank.get("importance"),
        "beam": settings.get("beam"),
        "bleu_signature": settings.get("bleu_signature"),
    }


def summary(result: Result) -> Summary:
    """One row per system."""
    make = {"importance": _importance, "groups": _groups, "cumulative": _cumulative}[result.data["analysis"]]
    return make(result.data["systems"])


def _importance(systems: Mapping[str, Any]) -> Summary:
    parts = {name: data["all"] for name, data in systems.items()}
    first = next(iter(parts))
    rows = tuple(
        (
            name,
            plain(part["mean"], 3),
            plain(part["variance"], 4),
            plain(part["variance"] / parts[first]["variance"] if parts[first]["variance"] else None),
            plain(variation(part)),
            *(plain(part[key], 3) for key in ("least", "most")),
        )
        for name, part in parts.items()
    )
    columns = ("system", "mean", "variance", f"variance / {first}", "deviation / mean", "least", "most")
    return Summary("Head importance I_h", columns, rows)


def variation(part: Mapping[str, float]) -> float | None:
    """Standard deviation over heads divided by the mean. A common factor of all I_h does not change it."""
    return math.sqrt(part["variance"]) / part["mean"] if part["mean"] else None


def _groups(systems: Mapping[str, Any]) -> Summary:
    metric, digits = _metric(data["full"] for data in systems.values())
    ranks = _ranks(next(iter(systems.values())))
    rows = tuple(
        (
            name,
            interval(data["full"][metric], digits),
            *(plain(group[metric]["value"], digits) for group in data["groups"]),
        )
        for name, data in systems.items()
    )
    title = "BLEU" if metric == "bleu" else "loss"
    return Summary(f"{title} with one group of heads masked", ("system", "none masked", *ranks), rows)


def _ranks(data: Mapping[str, Any]) -> list[str]:
    return [f"{group['first']}–{group['last']}" for group in data["groups"]]


def _cumulative(systems: Mapping[str, Any]) -> Summary:
    metric, digits = _metric(data["curves"][ORDERS[0]][0] for data in systems.values())
    rows = tuple(
        (
            name,
            interval(data["curves"][ORDERS[0]][0][metric], digits),
            *(plain(_halfway(data["curves"][order])[metric]["value"], digits) for order in ORDERS),
            plain(data["gap"][metric], digits),
            *((str(masked_within(data["curves"][ORDERS[1]])),) if metric == "bleu" else ()),
        )
        for name, data in systems.items()
    )
    title = "BLEU" if metric == "bleu" else "loss"
    within = (f"heads within {WITHIN:g} BLEU, least important first",) if metric == "bleu" else ()
    columns = ("system", title, "half masked, most important", "half masked, least important", "area between", *within)
    return Summary(f"{title} as heads are masked from either end", columns, rows)


def _halfway(curve: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The first point with at least half of the heads masked."""
    return next(point for point in curve if 2 * point["masked"] >= curve[-1]["masked"])


def metric_of(scores: Sequence[Mapping[str, Any]]) -> str:
    """`bleu` if all systems have BLEU, else `loss`."""
    return "bleu" if all("bleu" in one for one in scores) else "loss"


def _metric(scores: Any) -> tuple[str, int]:
    metric = metric_of(list(scores))
    return metric, 2 if metric == "bleu" else 4
