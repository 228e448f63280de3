"""The control of a pruning run: the whole model, trained for as many further updates as its levels were.

Whatever a level gains by more training, all heads gain too. So a level is compared with the control, where there is
one, and not with the checkpoint that was pruned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from pathlib import Path

import numpy as np

from hmc.artifact.bundle.order import MORE_TRAINING
from hmc.artifact.checkpoint.checkpoint import Checkpoint, load_checkpoint
from hmc.artifact.model.heads import KINDS, HeadScores
from hmc.training.pruning.nested import LevelScores, NestedRun
from hmc.training.pruning.request import PruneRequest

NOISE = 28.0
"""BLEU that two models of one quality differ by on a single sentence, about: half of a 95 % interval of a difference is
this divided by the root of the number of sentences, which is 1 BLEU for 800 of them."""


class ControlRun(NestedRun):
    """One training of all heads; `run()` trains. The learning rate falls from its peak to zero over all updates, and
    checkpoints are scored, chosen and averaged, as in nested fine-tuning."""

    part = "control"
    command = "hmc prune --control"
    mend = "give the numbers of updates that it began with"

    def _ranking(self) -> HeadScores:
        """Returns scores in which no head is above another: all of them stay open."""
        heads = self.source.architecture.heads
        return {kind: np.zeros((len(self.source.layout[kind]), heads), np.float32) for kind in KINDS}

    def _checkpoint(self, scores: LevelScores, averaged: Sequence[int] = ()) -> Checkpoint:
        """Keeps the log α of the source."""
        return replace(super()._checkpoint(scores, averaged), gates=self.source.gates)


def train_control(request: PruneRequest, steps: int) -> Path:
    """Trains all heads of the source of a request for `steps` updates, or resumes that, in the folder of a pruning run
    that has ended.

    Writes the checkpoint `control` to that folder and returns its path. Raises InvalidRequestError,
    InvalidArtifactError or DeviceUnavailableError with what to do.
    """
    return ControlRun(replace(request, targets=(), nested_steps=steps)).run()


def compared(paths: Sequence[Path]) -> dict[Path, str]:
    """Compares the dev scores of pruned checkpoints with the control: checkpoint → a sentence.

    paths: checkpoints of one pruning run, its control among them if there is one. With a control, each level is
    compared with it. Without one, there is a sentence for every level that gained more than noise over the checkpoint
    that was pruned.
    """
    checkpoints = {path: load_checkpoint(path) for path in paths}
    control = None
    for checkpoint in checkpoints.values():
        if checkpoint.config.provenance.get("command") == ControlRun.command:
            control = next(iter(checkpoint.metrics.values()))
    said = {}
    for path, checkpoint in checkpoints.items():
        before, after = map(checkpoint.metrics.get, ("dev_before", "dev_after"))
        if not (before and after):
            continue
        gain = after["bleu"] - before["bleu"]
        if control:
            apart = after["bleu"] - control["bleu"]
            said[path] = f"{apart:+.2f} BLEU against all heads after as many updates ({control['bleu']:.2f})"
        elif gain > NOISE / sqrt(after["sentences"]):
            said[path] = (
                f"{gain:+.2f} BLEU over the checkpoint that was pruned, which was not finished: {MORE_TRAINING}"
            )
    return said
