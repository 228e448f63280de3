"""Numbers out of what the steps of a study wrote."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from experiments.papers.studies import BASELINE, VARIANTS, Study
from hmc.artifact.bundle.manifest import Quality, read_manifest
from hmc.training.analysis.common.result import read_result

Value = TypeVar("Value")


class NotRunError(Exception):
    """A result that a claim is judged by does not exist yet."""


def _there(path: Path) -> Path:
    if not path.exists():
        raise NotRunError(str(path))
    return path


def result(study: Study, name: str, command: str) -> Mapping[str, Any]:
    """The data of an analysis of a model."""
    found = read_result(_there(study.measured(name) / f"{command}.json"), [command])
    data: Mapping[str, Any] = found.data.model_dump(mode="json")
    return data


def quality(study: Study, name: str, level: str) -> Quality:
    """The scores of one level of a bundle of scores."""
    found = read_manifest(_there(study.score(name)))
    scored = next((each.quality for each in found.levels if each.name == level), None)
    if scored is None:
        raise NotRunError(f"{name} {level}")
    return scored


def bleu(study: Study, folder: str, seed: int) -> float:
    """Test BLEU of a training, beam 4."""
    return _scored(study, folder, seed).bleu


def chrf(study: Study, folder: str, seed: int) -> float:
    """Test chrF of a training, beam 4."""
    return _scored(study, folder, seed).chrf


def _scored(study: Study, folder: str, seed: int) -> Quality:
    if (folder, seed) != (BASELINE, study.size.seeds[0]):
        return quality(study, f"headmask-{folder}-{seed}", "this")
    for variant, other in study.trainings():  # the first baseline is scored beside every other training
        with suppress(NotRunError):
            return quality(study, f"headmask-{variant.folder}-{other}", "reference")
    raise NotRunError(f"the score of {folder}-{seed}")


def spread(study: Study, folder: str, seed: int, how: str = "sentence") -> Mapping[str, float]:
    """Mean and variance over heads of I_h on the dev set, and `relative`: its standard deviation over its mean."""
    found: Mapping[str, float] = result(study, f"{folder}-{seed}/{how}", "importance")["all"]
    return {**found, "relative": found["variance"] ** 0.5 / found["mean"]}


def over(study: Study, folder: str, read: Callable[[Study, str, int], Value]) -> list[Value]:
    """What `read` finds for every seed of a variant that was run. Raises NotRunError if none was."""
    [variant] = [each for each in VARIANTS if each.folder == folder]
    found, missing = list[Value](), NotRunError(folder)
    for seed in variant.seeds(study.size):
        try:
            found.append(read(study, folder, seed))
        except NotRunError as error:
            missing = error
    if not found:
        raise missing
    return found


def masked(study: Study, folder: str, seed: int) -> dict[str, Any]:
    """Of the log of masks: the share of the updates that mask the most masked head, the number of heads that more than
    half of them mask, and the mean share of masked heads that the update before had masked too."""
    bleu(study, folder, seed)  # a training that has not ended has a log too
    run = study.trained(folder, seed).parent
    if study.kept is not None and not study.trained(folder, seed).is_dir():  # a run that has begun again has logs too
        run = study.kept / run.relative_to(study.root)
    counts = json.loads(_there(run / "headmask.json").read_text())
    last = counts["history"][-1]
    shares = [number / last["updates"] for number in last["masked"]]
    lines = [json.loads(line) for line in _there(run / "log.jsonl").read_text().splitlines()]
    again = [line["masked again"] for line in lines if "masked again" in line]
    return {
        "most": max(shares),
        "often": sum(share > 0.5 for share in shares),
        "again": sum(again) / max(1, len(again)),
    }
