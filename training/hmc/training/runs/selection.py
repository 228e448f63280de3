"""Which checkpoints of a training run are kept, and what is averaged at its end."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from hmc.artifact.checkpoint.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from hmc.artifact.checkpoint.weights import Tensors
from hmc.artifact.errors import InvalidRequestError
from hmc.training.model.checkpoints import average_tensors, import_tensors
from hmc.training.model.transformer import Transformer
from hmc.training.runs.recipe import RunSection, TrainSection

AVERAGE_MARGIN = 0.5
"""BLEU by which the best checkpoint must beat the average to be chosen: about the noise of a few hundred sentences."""


class Scored(Protocol):
    """Dev scores of a candidate."""

    @property
    def bleu(self) -> float:
        """What candidates are compared by."""


Scores = TypeVar("Scores", bound=Scored)


def why_ended(train: TrainSection, evaluations: Sequence[dict[str, Any]]) -> str | None:
    """Says why a run ends before its last update, as `train.patience` asks; None: it goes on.

    evaluations: `{"step", "bleu"}` of every dev evaluation. Evaluations in the warm-up do not count, because the first
    ones are often all 0.
    """
    if train.patience is None or not evaluations:
        return None
    best = max(evaluations, key=lambda entry: float(entry["bleu"]))  # the first of equal ones
    later = [entry for entry in evaluations if entry["step"] > max(best["step"], train.warmup_steps)]
    if len(later) < train.patience:
        return None
    return (
        f"no better dev BLEU in {len(later)} evaluation(s) (train.patience {train.patience}); the best is "
        f"{best['bleu']:.2f}, after update {best['step']:,}"
    )


class Selection:
    """The checkpoints of a run in `folder`, one folder for each dev evaluation that is kept."""

    def __init__(self, folder: Path, run: RunSection, evaluations: list[dict[str, Any]]) -> None:
        """evaluations: `{"step", "bleu"}` of every dev evaluation; the run adds to the list. One with `extra` came only
        because its update was the last one."""
        self.folder = folder
        self.run = run
        self.evaluations = evaluations

    def path(self, step: int) -> Path:
        """Returns the folder of the checkpoint of `step`."""
        return self.folder / f"step-{step:07d}"

    def add(self, step: int, bleu: float, checkpoint: Checkpoint, *, extra: bool = False) -> None:
        """Writes the checkpoint of a dev evaluation, and deletes checkpoints that are now surplus."""
        save_checkpoint(checkpoint, self.path(step))
        self.evaluations.append({"step": step, "bleu": bleu} | ({"extra": True} if extra else {}))
        self.remove_surplus()

    def remove_surplus(self) -> None:
        """Deletes checkpoints beyond `keep_checkpoints`, the lowest dev BLEU first, unless all checkpoints are kept. An
        extra one takes no place."""
        if self.run.keep == "every":
            return
        extra = self._extra()
        regular = [step for step in self._present() if step not in extra]
        for step in regular[self.run.keep_checkpoints :]:
            shutil.rmtree(self.path(step), ignore_errors=True)

    def forget_extra(self, last: int) -> None:
        """Forgets extra evaluations before the update `last`, with their checkpoints, because a run of that length has
        no such evaluations."""
        for step in self._extra() - {last}:
            shutil.rmtree(self.path(step), ignore_errors=True)
        self.evaluations[:] = [e for e in self.evaluations if not e.get("extra") or e["step"] == last]

    def _extra(self) -> set[int]:
        return {entry["step"] for entry in self.evaluations if entry.get("extra")}

    def averaged(self) -> list[int]:
        """Returns the steps of the checkpoints to average, best dev BLEU first.

        Raises InvalidRequestError when no checkpoint is left.
        """
        if not (present := self._present()):
            raise InvalidRequestError(
                f"{self.folder} has none of the run's checkpoints: restore one, or train again in another folder"
            )
        return present[: self.run.averaged]

    def average(self, steps: Sequence[int]) -> Tensors:
        """Returns the mean of the weights of the checkpoints of `steps`."""
        return average_tensors([load_checkpoint(self.path(step)) for step in steps])

    def choose(self, model: Transformer, score: Callable[[str], Scores]) -> tuple[str, list[int], Scores]:
        """Chooses between the best checkpoint and the average; returns name, steps and scores of the choice.

        score: returns dev scores of the model, which has the weights of the candidate that it is given in words. At the
        end the model has those of the choice. The average is chosen unless the best checkpoint beats it by more than
        AVERAGE_MARGIN: dev BLEU chose the best checkpoint, so its own dev BLEU flatters it.
        """
        steps = self.averaged()
        candidates = {"best": steps[:1], "average": steps}
        if len(steps) == 1:
            del candidates["best"]
        scores = {}
        for name, chosen in candidates.items():
            import_tensors(model, self.average(chosen))
            scores[name] = score(f"{name} of {len(chosen)} checkpoint(s)")
        name = "average"
        if "best" in scores and scores["best"].bleu - AVERAGE_MARGIN > scores["average"].bleu:
            name = "best"
            import_tensors(model, self.average(candidates[name]))
        return name, candidates[name], scores[name]

    def _present(self) -> list[int]:
        """Steps of the checkpoints that are there, best dev BLEU first. A stretch that was lost may have deleted some
        that were evaluated before it."""
        best_first = sorted(self.evaluations, key=lambda e: (-e["bleu"], -e["step"]))
        return [entry["step"] for entry in best_first if self.path(entry["step"]).is_dir()]
