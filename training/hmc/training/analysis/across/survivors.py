"""Heads that remain after pruning, by kind and layer, for each budget (Voita et al. 2019, figures 9 and 10).

Checkpoints of several seeds with the same number of open heads show how much of the choice is chance: how far the
numbers by layer differ, and how many heads two checkpoints share beyond the number that those numbers explain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from hmc.artifact.checkpoint.checkpoint import CONFIG, CheckpointConfig, load_config
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.model.heads import KINDS, Head, HeadLayout
from hmc.artifact.storage.files import sha256_file
from hmc.training.analysis.common.records import ImportanceData, MeanAndRange, Overlap, Survivors, SurvivorsData
from hmc.training.analysis.common.result import CheckpointSource, Result, read_result
from hmc.training.analysis.common.summary import Summary, plain, range_cell

COMMAND = "survivors"


def mean_and_range(values: Iterable[float]) -> MeanAndRange:
    """Mean and extremes of one or more values."""
    numbers = np.array(list(values), float)
    return MeanAndRange(mean=float(numbers.mean()), least=float(numbers.min()), most=float(numbers.max()))


def shared(a: HeadLayout, b: HeadLayout, heads_per_layer: int) -> tuple[int, float]:
    """Number of heads that are open in both layouts, and the number expected by chance.

    By chance: if each attention l kept its number of open heads but chose them at random. This is
    Σ_l |a_l| · |b_l| / heads_per_layer.
    """
    same = len(set(a.heads()) & set(b.heads()))
    by_chance = 0
    for kind in KINDS:
        by_chance += sum(len(x) * len(y) for x, y in zip(a[kind], b[kind], strict=True))
    return same, by_chance / heads_per_layer


def analyse(paths: Sequence[Path], scores: Path | None = None) -> Result[SurvivorsData]:
    """Open heads of pruned checkpoints, which are grouped by their number of open heads. Only config.json is read, and
    its sha256 stands for the checkpoint.

    scores: importance.json of `hmc analyze importance` for the model before pruning. Each checkpoint is then compared
    with as many heads of highest I_h. Raises InvalidRequestError for checkpoints or scores of another architecture,
    InvalidArtifactError for a checkpoint that cannot be read.
    """
    if not paths:
        raise InvalidRequestError("give one or more checkpoints")
    checkpoints = list(map(load_config, paths))
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
        data=SurvivorsData.model_validate(
            {
                "heads_per_layer": arch.heads,
                "layers": {kind: len(checkpoints[0].layout[kind]) for kind in KINDS},
                "layouts": [checkpoint.layout.to_json() for checkpoint in checkpoints],
                "budgets": budgets,
            }
        ),
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
    data: ImportanceData = read_result(path, ["importance"]).data
    full = arch.full_layout()
    ranking = [row.head for row in sorted(data.heads, key=lambda row: -row.importance)]
    layout = HeadLayout.from_json(data.layout) if data.layout else full
    same = data.heads_per_layer in (0, arch.heads)
    same = same and all(len(layout[kind]) == len(full[kind]) for kind in KINDS) and set(ranking) <= set(full.heads())
    if not same:
        raise InvalidRequestError(
            f"{path} was measured on a model of another architecture: the checkpoints have {arch.encoder_layers} + "
            f"{arch.decoder_layers} layers of {arch.heads} heads; measure the model they were pruned from"
        )
    return ranking


def _budget(
    heads: int, layouts: Sequence[HeadLayout], heads_per_layer: int, ranking: Sequence[Head] | None
) -> Survivors:
    counts = [layout.counts() for layout in layouts]
    kinds = {}
    layers = {}
    empty = np.zeros(len(layouts), int)
    for kind in KINDS:
        open_heads = np.array([count[kind] for count in counts])  # [layouts, layers]
        kinds[kind] = mean_and_range(open_heads.sum(1))
        layers[kind] = list(map(mean_and_range, open_heads.T))
        empty += (open_heads == 0).sum(1)
    budget = Survivors(
        heads=heads,
        checkpoints=len(layouts),
        kinds=kinds,
        layers=layers,
        without_heads=mean_and_range(empty),
        agreement=_overlap(combinations(layouts, 2), heads_per_layer),
    )
    if ranking is not None:
        first = layouts[0]
        ranked = set(ranking)
        for layout in layouts:
            for head in layout.heads():
                if head not in ranked:
                    raise InvalidRequestError(
                        f"the scores lack {head}, which is open in a checkpoint: measure the model before pruning"
                    )
        best = HeadLayout.from_heads(ranking[:heads], len(first.encoder_self), len(first.cross))
        budget.most_important = _overlap(((layout, best) for layout in layouts), heads_per_layer)
    return budget


def _overlap(pairs: Iterable[tuple[HeadLayout, HeadLayout]], heads_per_layer: int) -> Overlap | None:
    """Means over pairs of layouts; None without pairs."""
    overlaps = np.array([shared(a, b, heads_per_layer) for a, b in pairs])
    if not len(overlaps):
        return None
    same, by_chance = overlaps.mean(0).tolist()
    return Overlap(shared=same, by_chance=by_chance)


def summary(result: Result[SurvivorsData]) -> Summary:
    """One row per budget."""
    budgets = result.data.budgets
    columns = ["heads", "checkpoints", *KINDS, *(f"{kind} by layer" for kind in KINDS), "shared (by chance)"]
    if budgets[0].most_important:
        columns.append("of highest I_h (by chance)")
    rows = []
    for budget in budgets:
        row = [str(budget.heads), str(budget.checkpoints)]
        row += [range_cell(budget.kinds[kind]) for kind in KINDS]
        for kind in KINDS:
            row.append(" + ".join(plain(layer.mean, 1) for layer in budget.layers[kind]))
        row.append(_overlap_cell(budget.agreement))
        if budget.most_important:
            row.append(_overlap_cell(budget.most_important))
        rows.append(tuple(row))
    note = "means over the checkpoints of a row (least to most); shared: heads that two of them have, on average"
    return Summary("Heads left after pruning", tuple(columns), tuple(rows), (note,))


def _overlap_cell(overlap: Overlap | None) -> str:
    return "–" if overlap is None else f"{overlap.shared:.1f} ({overlap.by_chance:.1f})"
