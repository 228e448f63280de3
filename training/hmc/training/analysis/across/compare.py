"""Results of one analysis for several systems side by side (Sun et al. 2021, figures 3 to 5, tables 5 and 6)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from hmc.artifact.errors import InvalidRequestError
from hmc.training.analysis.common.records import (
    ORDERS,
    ComparisonData,
    CumulativeData,
    GroupsData,
    ImportanceData,
    Spread,
)
from hmc.training.analysis.common.result import WITHIN, Result, masked_within, read_result
from hmc.training.analysis.common.summary import DIGITS, TITLES, Summary, interval, metric_of, plain

COMMAND = "compare"
COMPARABLE = ("importance", "groups", "cumulative")


def parse_names(arguments: Sequence[str]) -> dict[str, Path]:
    """Arguments `NAME=FILE` → {name: path}. `FILE` without a name is named after its folder.

    Raises InvalidRequestError for an empty name and for a name that occurs twice.
    """
    files: dict[str, Path] = {}
    for argument in arguments:
        name, equals, rest = argument.partition("=")
        path = Path(rest if equals else argument)
        name = name if equals else path.parent.name
        if not name or name in files:
            raise InvalidRequestError(
                f"{argument}: write NAME=FILE with a name that no other argument has, e.g. baseline={path}"
            )
        files[name] = path
    return files


def analyse(files: Mapping[str, Path]) -> Result[ComparisonData]:
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
    texts = set()
    named = []
    for name, result in results.items():
        texts.add(tuple(corpus.sha256 for corpus in result.corpora))
        named.append(f"{name} on {', '.join(corpus.name for corpus in result.corpora)}")
    if len(texts) > 1:
        raise InvalidRequestError(f"results on different sentences ({', '.join(named)}): they cannot be compared")
    how = {name: _how(result) for name, result in results.items()}
    for key in next(iter(how.values())):
        values = {name: settings[key] for name, settings in how.items()}
        if len({value for value in values.values() if value is not None}) > 1:
            listed = ", ".join(f"{name} has {value}" for name, value in values.items())
            raise InvalidRequestError(f"results with different {key} ({listed}): they cannot be compared")
    first = next(iter(results.values()))
    if first.command == "groups" and len({tuple(_ranks(result.data)) for result in results.values()}) > 1:
        raise InvalidRequestError(
            "results with groups of different sizes; run groups with the same number of groups for each"
        )
    return Result(
        command=COMMAND,
        checkpoints=list(chain.from_iterable(result.checkpoints for result in results.values())),
        corpora=first.corpora,
        settings={name: result.settings for name, result in results.items()},
        data=ComparisonData(analysis=first.command, systems={name: result.data for name, result in results.items()}),
    )


def _how(result: Result[Any]) -> dict[str, Any]:
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


def summary(result: Result[ComparisonData]) -> Summary:
    """One row per system."""
    tables: dict[str, Callable[[Any], Summary]] = {
        "importance": _importance,
        "groups": _groups,
        "cumulative": _cumulative,
    }
    return tables[result.data.analysis](result.data.systems)


def _importance(systems: Mapping[str, ImportanceData]) -> Summary:
    first, *_ = systems
    least_variance = systems[first].all.variance
    rows = []
    for name, data in systems.items():
        part = data.all
        times = part.variance / least_variance if least_variance else None
        row = (name, plain(part.mean, 3), plain(part.variance, 4), plain(times), plain(variation(part)))
        rows.append((*row, plain(part.least, 3), plain(part.most, 3)))
    columns = ("system", "mean", "variance", f"variance / {first}", "deviation / mean", "least", "most")
    return Summary("Head importance I_h", columns, tuple(rows))


def variation(part: Spread) -> float | None:
    """Standard deviation over heads divided by the mean. A common factor of all I_h does not change it."""
    return math.sqrt(part.variance) / part.mean if part.mean else None


def _groups(systems: Mapping[str, GroupsData]) -> Summary:
    metric = metric_of([data.full for data in systems.values()])
    digits = DIGITS[metric]
    ranks: list[str] = []
    rows = []
    for name, data in systems.items():
        ranks = _ranks(data)
        scores = (plain(group.metric(metric).value, digits) for group in data.groups)
        rows.append((name, interval(data.full.metric(metric), digits), *scores))
    title = f"{TITLES[metric]} with one group of heads masked"
    return Summary(title, ("system", "none masked", *ranks), tuple(rows))


def _ranks(data: GroupsData) -> list[str]:
    return [group.ranks for group in data.groups]


def _cumulative(systems: Mapping[str, CumulativeData]) -> Summary:
    metric = metric_of([data.start for data in systems.values()])
    digits = DIGITS[metric]
    title = TITLES[metric]
    columns = ["system", title, "half masked, most important", "half masked, least important", "area between"]
    if metric == "bleu":
        columns.append(f"heads within {WITHIN:g} BLEU, least important first")
    rows = []
    for name, data in systems.items():
        row = [name, interval(data.start.metric(metric), digits)]
        for order in ORDERS:
            curve = data.curves[order]
            halfway = next(point for point in curve if 2 * point.masked >= curve[-1].masked)
            row.append(plain(halfway.metric(metric).value, digits))
        row.append(plain(data.gap[metric], digits))
        if metric == "bleu":
            row.append(str(masked_within(data.curves[ORDERS[1]])))
        rows.append(tuple(row))
    return Summary(f"{title} as heads are masked from either end", tuple(columns), tuple(rows))
