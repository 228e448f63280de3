"""Gates in the course of pruning: expected open heads by kind, the budget, and the gates that have not settled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.heads import KINDS
from hmc.training.analysis.cells import plain
from hmc.training.analysis.result import Result, Summary, versions

COMMAND = "trajectory"
NEEDED = ("stage", "step", "open", "unsettled")


def analyse(files: Mapping[str, Path]) -> Result:
    """`trajectory.json` of one or more runs of `hmc prune`, a point each time the run logged while gates closed.

    Updates are counted through the closing stages; those that recover are left out. Raises InvalidRequestError.
    """
    if not files:
        raise InvalidRequestError("give one or more files, e.g. runs/pruned/trajectory.json")
    runs, digests = {}, {}
    for name, path in files.items():
        points, digests[name] = _read(path)
        runs[name] = {"file": str(path), "points": _counted(points)}
    return Result(command=COMMAND, settings={"sha256": digests}, versions=versions(), data={"runs": runs})


def _read(path: Path) -> tuple[list[dict[str, Any]], str]:
    """Points and the file's sha256."""
    try:
        content = path.read_bytes()
        points = json.loads(content)
    except OSError as error:
        raise InvalidRequestError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InvalidRequestError(f"{path}: not JSON: {error}") from error
    if not (isinstance(points, list) and points and all(_is_point(point) for point in points)):
        raise InvalidRequestError(f"{path}: not a trajectory.json of hmc prune, or one without a point yet")
    return points, hashlib.sha256(content).hexdigest()


def _is_point(point: object) -> bool:
    return isinstance(point, dict) and all(isinstance(point.get(key), int | float) for key in NEEDED)


def _counted(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Points with `update`, which goes on from stage to stage."""
    found: list[dict[str, Any]] = []
    before = 0
    for number, point in enumerate(points):
        if number and point["stage"] != points[number - 1]["stage"]:
            before = found[-1]["update"]
        kinds = {kind: point.get(f"open/{kind}") for kind in KINDS}
        kept = {key: point.get(key) for key in ("stage", "budget", "open", "unsettled")}
        found.append({"update": before + point["step"], **kept, "kinds": kinds})
    return found


def stages(points: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Points of each closing stage."""
    return [[p for p in points if p["stage"] == stage] for stage in dict.fromkeys(p["stage"] for p in points)]


def summary(result: Result) -> Summary:
    """A row a run and closing stage."""
    rows = []
    for name, run in result.data["runs"].items():
        for number, stage in enumerate(stages(run["points"]), 1):
            last = stage[-1]
            rows.append((
                name,
                str(number),
                str(last["update"]),
                plain(last["budget"], 0),
                plain(last["open"], 1),
                *(plain(last["kinds"][kind], 1) for kind in KINDS),
                plain(max(point["unsettled"] for point in stage), 0),
                plain(last["unsettled"], 0),
            ))  # fmt: skip
    columns = ("run", "stage", "until update", "budget", "open", *KINDS, "most unsettled", "unsettled at the end")
    return Summary("Expected open heads while gates close", columns, tuple(rows))
