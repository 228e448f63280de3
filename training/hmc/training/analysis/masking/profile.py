"""Pruning profiles in training: relative BLEU without the least important heads (Michel et al. 2019, section 6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hmc.artifact.errors import InvalidRequestError
from hmc.training.analysis.common.masks import close_heads
from hmc.training.analysis.common.measure import Settings, measure
from hmc.training.analysis.common.records import Profile, ProfileData, ProfilePoint
from hmc.training.analysis.common.result import CheckpointSource, Result
from hmc.training.analysis.common.subject import Progress, Subject, Text, silent
from hmc.training.analysis.common.summary import Summary, plain
from hmc.training.analysis.masking.ranking import Ranking

COMMAND = "profile"
SHARES = tuple(n / 10 for n in range(10))
"""Steps of 10 %, as in the paper, from nothing masked."""


def labels(paths: Sequence[Path]) -> list[str]:
    """Names of checkpoints: the last part of each path, or the whole path if last parts are not unique."""
    names = [path.name for path in paths]
    return names if len(set(names)) == len(names) else list(map(str, paths))


def analyse(
    paths: Sequence[Path],
    load: Callable[[Path], tuple[Subject, Text, Ranking]],
    settings: Settings,
    shares: Sequence[float] = SHARES,
    progress: Progress = silent,
) -> Result[ProfileData]:
    """BLEU of every checkpoint with shares of its heads masked, least important first, divided by BLEU with all heads.

    load: opens a checkpoint, the text, and the checkpoint's own ranking. Only one checkpoint is in memory at a time. A
    checkpoint with BLEU 0 for all heads has no relative BLEU. Raises InvalidRequestError for settings without BLEU, for
    shares that do not rise from 0 to 1, and as `measure`.
    """
    if not settings.bleu:
        raise InvalidRequestError("a pruning profile is relative BLEU: it needs settings with BLEU")
    in_range = all(0 <= share <= 1 for share in shares)  # NaN is not
    if not shares or not in_range or list(shares) != sorted(set(shares)):
        raise InvalidRequestError(
            f"shares {', '.join(map(str, shares))}: give rising numbers from 0 to 1, e.g. 0.1,0.2"
        )
    shares = [0.0, *(share for share in shares if share)]
    sources: list[CheckpointSource] = []
    rows: list[Profile] = []
    how: dict[str, Any] = {}
    corpora = []
    for path, label in zip(paths, labels(paths), strict=True):
        subject, text, ranking = load(path)
        heads = ranking.heads[::-1]
        counts = [round(share * len(heads)) for share in shares]
        masks = np.stack([close_heads(subject.layout, heads[:count]) for count in counts])
        measured = measure(subject, text, masks, settings, _prefixed(progress, label))
        points = []
        for mask, (share, count) in enumerate(zip(shares, counts, strict=True)):
            relative = measured.relative_bleu(mask) if measured.bleu[0] else None
            points.append(ProfilePoint(share=share, masked=count, **measured.scores(mask), relative_bleu=relative))
        rows.append(Profile(name=label, points=points))
        sources.append(subject.source)
        how = {**settings.to_json(text), "rank": ranking.origin}
        corpora = [text.source]
    return Result(
        command=COMMAND,
        checkpoints=sources,
        corpora=corpora,
        settings=how,
        data=ProfileData(shares=shares, checkpoints=rows),
    )


def _prefixed(progress: Progress, label: str) -> Progress:
    return lambda step: progress(f"{label}: {step}")


def summary(result: Result[ProfileData]) -> Summary:
    """One row per checkpoint, one column per share: BLEU in per cent of BLEU with all heads."""
    rows = []
    for profile in result.data.checkpoints:
        whole, *masked = profile.points
        relative = (plain(100 * point.relative, 1) for point in masked)
        rows.append((profile.name, plain(whole.metric("bleu").value), *relative))
    columns = ("checkpoint", "BLEU", *(f"−{share:.0%}" for share in result.data.shares[1:]))
    note = "per cent of BLEU with all heads, after masking that share of the heads, least important first"
    return Summary("Pruning profile", columns, tuple(rows), (note,))
