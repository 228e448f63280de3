"""Gates during pruning: what is expected to stay, the budget, and the number of gates still undecided."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.git_lfs import why
from hmc.artifact.model.heads import KINDS
from hmc.training.analysis.common.result import Result
from hmc.training.analysis.common.summary import Summary, plain

COMMAND = "trajectory"
NEEDED = ("stage", "step")
QUANTITIES = {
    "heads": ("open", "budget", "unsettled"),
    "neurons": ("neurons", "neuron_budget", "neurons_unsettled"),
    "latency_ms": ("latency_ms", "latency_budget_ms", ""),
}
"""What a budget may be of → fields of a point: what is expected to stay, the budget, gates that have not settled."""


def analyse(files: Mapping[str, Path]) -> Result:
    """Reads `trajectory.json` of one or more runs of `hmc prune`. It has one point per log line of a closing stage.

    Updates are counted over all closing stages, without the recovery stages. Raises InvalidRequestError for a file that
    cannot be read, is no trajectory, or holds NaN.
    """
    if not files:
        raise InvalidRequestError("give one or more files, e.g. runs/pruned/trajectory.json")
    runs = {}
    digests = {}
    for name, path in files.items():
        points, digests[name] = _read(path)
        runs[name] = {"file": str(path), "points": _counted(points)}
    return Result(command=COMMAND, settings={"sha256": digests}, data={"runs": runs})


def _read(path: Path) -> tuple[list[dict[str, Any]], str]:
    """Points and the file's sha256."""
    try:
        content = path.read_bytes()
        points = json.loads(content)
    except OSError as error:
        raise InvalidRequestError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InvalidRequestError(f"{path} {why(path, f'is not JSON: {error}')}") from error
    if not (isinstance(points, list) and points and all(_is_point(point) for point in points)):
        raise InvalidRequestError(
            f"{path}: not a trajectory.json of hmc prune: it needs points with the numbers {', '.join(NEEDED)}, and "
            f"{' or '.join(fields[0] for fields in QUANTITIES.values())}"
        )
    return points, hashlib.sha256(content).hexdigest()


def _is_point(point: object) -> bool:
    if not isinstance(point, dict):
        return False
    known = [fields for fields in QUANTITIES.values() if fields[0] in point]
    numbers = [point[key] for fields in known for key in fields if key in point] + [point.get(key) for key in NEEDED]
    return bool(known) and all(isinstance(number, int | float) and math.isfinite(number) for number in numbers)


def _counted(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The points with a field `update`, which counts on from stage to stage."""
    found: list[dict[str, Any]] = []
    before = 0
    for number, point in enumerate(points):
        if number and point["stage"] != points[number - 1]["stage"]:
            before = found[-1]["update"]
        kinds = {kind: point.get(f"open/{kind}") for kind in KINDS}
        kept = {key: point.get(key) for key in ("stage", "budget", "open", "unsettled")}
        more = {key: point[key] for fields in list(QUANTITIES.values())[1:] for key in fields if key in point}
        found.append({"update": before + point["step"], **kept, "kinds": kinds, **more})
    return found


def stages(points: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Points of each closing stage."""
    return [[p for p in points if p["stage"] == stage] for stage in dict.fromkeys(p["stage"] for p in points)]


def quantities(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """The `QUANTITIES` that the points of a run have."""
    return [name for name, fields in QUANTITIES.items() if any(p.get(fields[0]) is not None for p in points)]


def summary(result: Result) -> Summary:
    """One row per run and closing stage. Columns of neurons and of latency are there if a run has them."""
    runs = result.data["runs"]
    there = {name for run in runs.values() for name in quantities(run["points"])}
    more = [name for name in QUANTITIES if name in there and name != "heads"]
    rows = []
    for name, run in runs.items():
        for number, stage in enumerate(stages(run["points"]), 1):
            last = stage[-1]
            unsettled = [point["unsettled"] for point in stage if point["unsettled"] is not None]
            rows.append((
                name,
                str(number),
                str(last["update"]),
                plain(last["budget"], 0),
                plain(last["open"], 1),
                *(plain(last["kinds"][kind], 1) for kind in KINDS),
                plain(max(unsettled, default=None), 0),
                plain(last["unsettled"], 0),
                *(plain(last.get(field), 1) for each in more for field in QUANTITIES[each] if field),
            ))  # fmt: skip
    columns = ("run", "stage", "until update", "budget", "open", *KINDS, "most unsettled", "unsettled at the end")
    fields = tuple(field.replace("_", " ") for each in more for field in QUANTITIES[each] if field)
    return Summary("What is expected to stay while gates close", columns + fields, tuple(rows))
