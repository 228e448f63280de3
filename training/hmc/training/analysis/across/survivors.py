"""Heads that remain after pruning, by kind and layer, for each budget (Voita et al. 2019, figures 9 and 10).

Checkpoints of several seeds with the same number of open heads show how much of the choice is chance: how far the
numbers by layer differ, and how many heads two checkpoints share beyond the number that those numbers explain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from hmc.artifact.checkpoint.checkpoint import CONFIG, CheckpointConfig, load_config
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.model.heads import KINDS, Head, HeadLayout
from hmc.artifact.storage.files import sha256_file
from hmc.training.analysis.common.result import CheckpointSource, Result, head_of, read_result
from hmc.training.analysis.common.summary import Summary, plain, spread_cell

COMMAND = "survivors"


def mean_and_range(values: Iterable[float]) -> dict[str, float]:
    """`mean`, `least` and `most` of one or more values."""
    found = [float(value) for value in values]
    return {"mean": float(np.mean(found)), "least": min(found), "most": max(found)}


def shared(a: HeadLayout, b: HeadLayout, heads_per_layer: int) -> tuple[int, float]:
    """Number of heads that are open in both layouts, and the number expected by chance.

    By chance: if each attention l kept its number of open heads but chose them at random. This is
    Σ_l |a_l| · |b_l| / heads_per_layer.
    """
    pairs = [(x, y) for kind in KINDS for x, y in zip(a[kind], b[kind], strict=True)]
    chance = sum(len(x) * len(y) for x, y in pairs) / heads_per_layer
    return sum(len(set(x) & set(y)) for x, y in pairs), chance


def analyse(paths: Sequence[Path], scores: Path | None = None) -> Result:
    """Open heads of pruned checkpoints, which are grouped by their number of open heads. Only config.json is read, and
    its sha256 stands for the checkpoint.

    scores: importance.json of `hmc analyze importance` for the model before pruning. Each checkpoint is then compared
    with as many heads of highest I_h. Raises InvalidRequestError for checkpoints or scores of another architecture,
    InvalidArtifactError for a checkpoint that cannot be read.
    """
    if not paths:
        raise InvalidRequestError("give one or more checkpoints")
    checkpoints = [load_config(path) for path in paths]
    sources = [
        CheckpointSource(name=str(path), digest=sha256_file(path / CONFIG), heads=checkpoint.layout.total)
        for path, checkpoint in zip(paths, checkpoints, strict=True)
    ]
    _check(checkpoints, sources)
    arch = checkpoints[0].architecture
    ranking = _ranking(scores, arch) if scores else None
    budgets = []
    for heads in sorted({source.heads for source in sources}, reverse=True):
        layouts = [checkpoint.layout for checkpoint in checkpoints if checkpoint.layout.total == heads]
        budgets.append(_budget(heads, layouts, arch.heads, ranking))
    return Result(
        command=COMMAND,
        checkpoints=sources,
        settings={"scores": read_result(scores).checkpoints[0].model_dump() if scores else None},
        data={
            "heads_per_layer": arch.heads,
            "layers": {kind: len(checkpoints[0].layout[kind]) for kind in KINDS},
            "layouts": [checkpoint.layout.to_json() for checkpoint in checkpoints],
            "budgets": budgets,
        },
    )


def _check(checkpoints: Sequence[CheckpointConfig], sources: Sequence[CheckpointSource]) -> None:
    """Raises InvalidRequestError unless the checkpoints differ and have the same architecture."""
    first = checkpoints[0].architecture
    seen: dict[str, str] = {}
    for checkpoint, source in zip(checkpoints, sources, strict=True):
        if checkpoint.architecture != first:
            raise InvalidRequestError(f"{source.name} and {sources[0].name} have different architectures")
        if source.digest in seen:
            raise InvalidRequestError(
                f"{source.name} and {seen[source.digest]} are the same checkpoint; give each of them once"
            )
        seen[source.digest] = source.name


def _ranking(path: Path, arch: Architecture) -> list[Head]:
    """Heads of a result of `importance`, most important first; ties by kind, layer, index.

    Raises InvalidRequestError for a result of a model of another architecture.
    """
    data = read_result(path, ["importance"]).data
    full = arch.full_layout()
    ranking = [head_of(row) for row in sorted(data["heads"], key=lambda row: -float(row["importance"]))]
    layout = HeadLayout.from_json(data["layout"]) if "layout" in data else full
    same = data.get("heads_per_layer", arch.heads) == arch.heads
    same = same and all(len(layout[kind]) == len(full[kind]) for kind in KINDS) and set(ranking) <= set(full.heads())
    if not same:
        raise InvalidRequestError(
            f"{path} was measured on a model of another architecture: the checkpoints have {arch.encoder_layers} + "
            f"{arch.decoder_layers} layers of {arch.heads} heads; measure the model they were pruned from"
        )
    return ranking


def _budget(
    heads: int, layouts: Sequence[HeadLayout], heads_per_layer: int, ranking: Sequence[Head] | None
) -> dict[str, Any]:
    counts = [layout.counts() for layout in layouts]
    layers = {
        kind: [mean_and_range(row) for row in zip(*(count[kind] for count in counts), strict=True)] for kind in KINDS
    }
    found: dict[str, Any] = {
        "heads": heads,
        "checkpoints": len(layouts),
        "kinds": {kind: mean_and_range(sum(count[kind]) for count in counts) for kind in KINDS},
        "layers": layers,
        "without_heads": mean_and_range(sum(row == 0 for rows in count.values() for row in rows) for count in counts),
        "agreement": _overlap(combinations(layouts, 2), heads_per_layer),
    }
    if ranking is not None:
        first = layouts[0]
        missing = [str(head) for layout in layouts for head in layout.heads() if head not in set(ranking)]
        if missing:
            raise InvalidRequestError(
                f"the scores lack {missing[0]}, which is open in a checkpoint: measure the model before pruning"
            )
        best = HeadLayout.from_heads(ranking[:heads], len(first.encoder_self), len(first.cross))
        found["most_important"] = _overlap(((layout, best) for layout in layouts), heads_per_layer)
    return found


def _overlap(pairs: Iterable[tuple[HeadLayout, HeadLayout]], heads_per_layer: int) -> dict[str, float] | None:
    """Means over pairs of layouts; None without pairs."""
    found = [shared(a, b, heads_per_layer) for a, b in pairs]
    if not found:
        return None
    return {
        "shared": float(np.mean([same for same, _ in found])),
        "by_chance": float(np.mean([chance for _, chance in found])),
    }


def summary(result: Result) -> Summary:
    """One row per budget."""
    budgets = result.data["budgets"]
    ranked = any("most_important" in budget for budget in budgets)
    rows = tuple(
        (
            str(budget["heads"]),
            str(budget["checkpoints"]),
            *(spread_cell(budget["kinds"][kind]) for kind in KINDS),
            *(" + ".join(plain(layer["mean"], 1) for layer in budget["layers"][kind]) for kind in KINDS),
            _overlap_cell(budget["agreement"]),
            *((_overlap_cell(budget["most_important"]),) if ranked else ()),
        )
        for budget in budgets
    )
    columns = (
        "heads",
        "checkpoints",
        *KINDS,
        *(f"{kind} by layer" for kind in KINDS),
        "shared (by chance)",
        *(("of highest I_h (by chance)",) if ranked else ()),
    )
    note = "means over the checkpoints of a row (least to most); shared: heads that two of them have, on average"
    return Summary("Heads left after pruning", columns, rows, (note,))


def _overlap_cell(overlap: Mapping[str, float] | None) -> str:
    return "–" if overlap is None else f"{overlap['shared']:.1f} ({overlap['by_chance']:.1f})"
