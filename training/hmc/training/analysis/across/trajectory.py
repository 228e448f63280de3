"""Gates during pruning: what is expected to stay, the budget, and the number of gates still undecided."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.git_lfs import why
from hmc.artifact.model.heads import KINDS
from hmc.training.analysis.common.records import GatePoint, GateRun, TrajectoryData
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


def analyse(files: Mapping[str, Path]) -> Result[TrajectoryData]:
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
        runs[name] = GateRun(file=str(path), points=_counted(points))
    return Result(command=COMMAND, settings={"sha256": digests}, data=TrajectoryData(runs=runs))


def _read(path: Path) -> tuple[list[dict[str, Any]], str]:
    """Points and the file's sha256."""
    try:
        content = path.read_bytes()
        points = json.loads(content)
    except OSError as error:
        raise InvalidRequestError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InvalidRequestError(f"{path} {why(path, f'is not JSON: {error}')}") from error
    if not (isinstance(points, list) and points and all(map(_is_point, points))):
        raise InvalidRequestError(
            f"{path}: not a trajectory.json of hmc prune: it needs points with the numbers {', '.join(NEEDED)}, and "
            f"{' or '.join(fields[0] for fields in QUANTITIES.values())}"
        )
    return points, hashlib.sha256(content).hexdigest()


def _is_point(point: object) -> bool:
    if not isinstance(point, dict):
        return False
    known = [fields for fields in QUANTITIES.values() if fields[0] in point]
    present = [key for key in chain.from_iterable(known) if key in point]
    numbers = list(map(point.get, (*NEEDED, *present)))
    return bool(known) and all(isinstance(number, int | float) and math.isfinite(number) for number in numbers)


def _counted(points: Sequence[Mapping[str, Any]]) -> list[GatePoint]:
    """The points, with updates that count on from stage to stage."""
    counted: list[GatePoint] = []
    before = 0
    for number, point in enumerate(points):
        if number and point["stage"] != points[number - 1]["stage"]:
            before = counted[-1].update
        own = dict.fromkeys(("budget", "open", "unsettled")) | dict(point)
        kinds = {kind: point.get(f"open/{kind}") for kind in KINDS}
        counted.append(GatePoint.model_validate(own | {"update": before + point["step"], "kinds": kinds}))
    return counted


def stages(points: Sequence[GatePoint]) -> list[list[GatePoint]]:
    """Points of each closing stage."""
    by_stage: dict[int, list[GatePoint]] = {}
    for point in points:
        by_stage.setdefault(point.stage, []).append(point)
    return list(by_stage.values())


def quantities(runs: Iterable[GateRun]) -> list[str]:
    """The `QUANTITIES` that the points of any of the runs have."""
    points = list(chain.from_iterable(run.points for run in runs))
    return [name for name, (kept, *_) in QUANTITIES.items() if any(getattr(one, kept) is not None for one in points)]


def summary(result: Result[TrajectoryData]) -> Summary:
    """One row per run and closing stage. Columns of neurons and of latency are there if a run has them."""
    runs = result.data.runs
    more: list[str] = []
    for name in quantities(runs.values()):
        if name != "heads":
            more += filter(None, QUANTITIES[name])
    rows = []
    for name, run in runs.items():
        for number, stage in enumerate(stages(run.points), 1):
            last = stage[-1]
            unsettled = [point.unsettled for point in stage if point.unsettled is not None]
            row = [name, str(number), str(last.update), plain(last.budget, 0), plain(last.open, 1)]
            row += [plain(last.kinds[kind], 1) for kind in KINDS]
            row += [plain(max(unsettled, default=None), 0), plain(last.unsettled, 0)]
            row += [plain(getattr(last, field), 1) for field in more]
            rows.append(tuple(row))
    columns = ("run", "stage", "until update", "budget", "open", *KINDS, "most unsettled", "unsettled at the end")
    fields = (field.replace("_", " ") for field in more)
    return Summary("What is expected to stay while gates close", (*columns, *fields), tuple(rows))
