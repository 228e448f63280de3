"""Nested fine-tuning: one set of weights that serves several head budgets, and every budget between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hmc.artifact.checkpoint.checkpoint import CONFIG, Checkpoint, load_checkpoint, save_checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.heads import KINDS, HeadScores
from hmc.training.data.batches import make_batch
from hmc.training.data.parallel_text import check_corpora, read_dev
from hmc.training.model.checkpoints import export_tensors
from hmc.training.model.evaluate import Scores, evaluate
from hmc.training.model.importance import corpus_importance
from hmc.training.model.regimes import open_gates, select_layout
from hmc.training.pruning.base import CheckpointRun
from hmc.training.pruning.levels import Levels, nested_ranking, numbers_of, ranking_without_closing
from hmc.training.pruning.request import PrunePlan, PruneRequest, languages_of, request_text
from hmc.training.pruning.stages import as_budgets
from hmc.training.runs.folder import WHERE, check_pruning_folder, differences, where
from hmc.training.runs.log import RunLog
from hmc.training.runs.loop import Loop, Objective, Schedule
from hmc.training.runs.selection import Selection
from hmc.training.runs.state import RunProgress
from hmc.training.runs.updater import Update

IMPORTANCE_BATCH = 32
"""Dev sentences in a batch that measures importance."""


@dataclass
class NestedProgress(RunProgress):
    """How far nested fine-tuning has come."""

    steps: int = 0
    """Updates asked for; 0 in states of earlier versions."""
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    """`{"step", "bleu"}` of every dev evaluation; BLEU is the mean over the levels."""
    ranking: dict[str, list[list[float]]] = field(default_factory=dict)
    """Scores of the heads; empty in states of earlier versions."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of nested fine-tuning and of distillation, with WHERE; empty in states of earlier versions."""


@dataclass(frozen=True)
class LevelScores:
    """Dev scores of every level."""

    by_heads: dict[int, Scores]
    """Number of heads → scores."""

    @property
    def bleu(self) -> float:
        """The mean BLEU over the levels."""
        return sum(scores.bleu for scores in self.by_heads.values()) / len(self.by_heads)

    def to_json(self) -> dict[str, Any]:
        """Returns the scores of N heads as `dev_hN`."""
        return {f"dev_h{heads}": scores.to_json() for heads, scores in self.by_heads.items()}


class NestedRun(CheckpointRun, Schedule):
    """One run of nested fine-tuning; `run()` trains. It has the arguments of `nested_finetune`."""

    evaluates = True
    part = "nested"
    """Name of the checkpoint that is written, and of what the run folder has beside it: `-state`, `-checkpoints`."""
    command = "hmc prune --nested-steps"
    mend = "give that number to --nested-steps"
    """What to do about a state of another number of updates."""

    def __init__(self, request: PruneRequest, pruned: Sequence[Path] = ()) -> None:
        source = load_checkpoint(request.source)
        settings = request.settings.following(source.config.provenance)
        smaller = list(map(load_checkpoint, pruned))
        if any(checkpoint.ffn_widths != source.ffn_widths for checkpoint in smaller):
            raise InvalidRequestError(
                f"nested fine-tuning serves budgets of heads with one set of weights, and these checkpoints have lost "
                f"feed-forward neurons that {request.source} has: prune its neurons first, then the heads of the result"
            )
        budgets = as_budgets(request.targets, settings)
        below = [checkpoint.layout.total for checkpoint in smaller] or numbers_of(budgets, source.layout.total)
        languages = languages_of(source)
        check_corpora(request.train, languages)
        dev = read_dev(request.dev, languages, settings.run.eval_sentences)
        text = None
        if not pruned and self.part == "nested":  # there were no closing stages, whose run keeps the request
            check_pruning_folder(request.out, [])
            text = request_text(request.out, request.record(budgets), settings)
        plan = PrunePlan(request, source, settings, budgets, [], dev, text)
        super().__init__(plan, taught=settings.nested.teacher != "in-place" or bool(settings.distill.teacher))
        self.steps = request.nested_steps
        self.state = self.out / f"{self.part}-state"
        fresh = NestedProgress(steps=self.steps)
        fresh.settings = settings.model_dump(mode="json", include={"nested", "distill"}) | {WHERE: where(self.out)}
        ranking: HeadScores = nested_ranking(smaller) if smaller else self._ranking()
        fresh.ranking = {kind: np.asarray(ranking[kind]).tolist() for kind in KINDS}
        self.loop = Loop(
            self.fabric, self.model, [{"params": self.weights, "name": "weights"}], self.inputs,
            settings.train_section(self.steps), settings.run, fresh, self.state, distillation=self.distillation,
        )  # fmt: skip
        self.loop.resume(partial(self._check_same, fresh))
        self.progress = self.loop.progress
        self.progress.steps = self.steps
        self.progress.settings = fresh.settings
        self.progress.ranking = self.progress.ranking or fresh.ranking
        ranking = {kind: np.asarray(self.progress.ranking[kind], np.float32) for kind in KINDS}
        whole = source.layout
        self.levels = Levels(whole, ranking, [whole.total, *below], settings.nested, settings.seed, self.steps)
        self.selection = Selection(self.out / f"{self.part}-checkpoints", settings.run, self.progress.evaluations)

    def run(self) -> Path:
        """Trains to the last update; returns the path of the checkpoint."""
        step = self.progress.step
        written = self.out / self.part
        if step == self.steps and self._is_written(written):
            return written
        warnings = self.settings.warmup_problems(self.steps)
        with self.reporting(self.part, self.steps, step, self.inputs, warnings, self.part) as log:
            self.loop.run(self, log)
            self.write_result(self._finish, log)
        return written

    # -- the schedule: every update trains some levels -------------------------------------------------------------

    def objective(self, step: int) -> Objective:
        """Returns the passes over the levels of the update, and a rate that falls to zero."""
        rate = self.settings.warmed(self.settings.learning_rate * (1 - (step - 1) / self.steps), step)
        return Objective(None, {"weights": rate}, [partial(self._mask, heads) for heads in self.levels.trained(step)])

    def scalars(self, step: int, update: Update) -> dict[str, float]:  # noqa: ARG002 - see Schedule
        """Returns the heads of the smallest level that was trained, and the learning rate."""
        rate = self.loop.updater.optimizer.param_groups[0]["lr"]
        return {"heads": float(self.levels.trained(step)[-1]), "rate": rate}

    def evaluate(self, log: RunLog, *, due: bool) -> None:  # noqa: ARG002 - see Schedule
        """Scores every level on dev by greedy search, and writes a checkpoint."""
        scores = self._score(beam=1)
        step = self.progress.step
        log.report(step, {"dev BLEU": scores.bleu} | {f"h{h}": s.bleu for h, s in scores.by_heads.items()})
        self.selection.add(step, scores.bleu, self._checkpoint(scores))

    # -- parts ---------------------------------------------------------------------------------------------------

    def _mask(self, heads: int) -> None:
        select_layout(self.model, self.source.layout, self.levels.layout_of(heads))

    def _ranking(self) -> HeadScores:
        return ranking_without_closing(self.source, self.settings.nested.heads, self._importance)

    def _importance(self) -> HeadScores:
        """Measures I_h of the source on the dev text, on the CPU and without dropout."""
        arch = self.source.architecture
        sources, targets = self.vocabulary.encode_pairs(self.dev.pairs, arch.max_positions)
        batches = []
        for start in range(0, len(sources), IMPORTANCE_BATCH):
            rows = slice(start, start + IMPORTANCE_BATCH)
            batches.append(make_batch(sources[rows], targets[rows], self.vocabulary.pad_id, arch.decoder_start))
        return corpus_importance(self.model, batches, self.source.layout)

    def _check_same(self, asked: NestedProgress, saved: NestedProgress) -> None:
        """Raises InvalidRequestError when the saved state is of other settings or another number of updates."""
        if (saved.steps or self.steps) != self.steps or saved.step > self.steps:
            raise InvalidRequestError(
                f"{self.state} has {saved.steps or saved.step} steps, not {self.steps}; {self.mend}, or delete "
                "the folder to train anew"
            )
        former = {WHERE: asked.settings[WHERE]} | saved.settings
        if saved.settings and (different := differences(former, asked.settings)):
            raise InvalidRequestError(
                f"{self.state} belongs to other settings of nested fine-tuning or distillation "
                f"({'; '.join(different)}); give the same settings, or delete the folder to fine-tune anew"
            )

    def _is_written(self, path: Path) -> bool:
        """True when the checkpoint at `path` is the result of this run, not of an earlier one."""
        if not (path / CONFIG).is_file():
            return False
        provenance = load_checkpoint(path).config.provenance
        return bool(provenance.get("steps") == self.steps and provenance.get("inputs") == self.progress.fingerprints())

    def _finish(self, log: RunLog) -> None:
        """Writes the average of the checkpoints of highest mean BLEU, or the best one (see `Selection.choose`)."""

        def score(candidate: str) -> LevelScores:
            scores = self._score(beam=4)
            by_level = ", ".join(f"{heads} heads {one.bleu:.2f}" for heads, one in scores.by_heads.items())
            log.say(f"{self.part}, {candidate}: dev BLEU {by_level} (beam 4)")
            return scores

        _, steps, scores = self.selection.choose(self.model, score)
        save_checkpoint(self._checkpoint(scores, sorted(steps)), self.out / self.part)
        log.detail(f"wrote {self.out / self.part}")

    def _score(self, beam: int) -> LevelScores:
        """Returns dev scores with the heads of each budget open."""
        by_heads = {}
        for heads in self.levels.scored:
            self._mask(heads)
            by_heads[heads] = evaluate(self.model, self.vocabulary, self.dev.pairs, beam=beam)
        open_gates(self.model)
        return LevelScores(by_heads)

    def _checkpoint(self, scores: LevelScores, averaged: Sequence[int] = ()) -> Checkpoint:
        provenance: dict[str, Any] = {
            "command": self.command,
            "from": self.source.config.provenance,
            "settings": self.settings.model_dump(mode="json"),
            "budgets": self.levels.budgets,
            "steps": self.steps,
            "inputs": self.progress.fingerprints(),
        }
        if averaged:
            provenance["checkpoints"] = list(averaged)
        return Checkpoint(
            config=self.source.config.model_copy(update={"provenance": provenance}),
            tensors=export_tensors(self.model),
            tokenizer=self.source.tokenizer,
            gates=self.levels.ranking,
            metrics=scores.to_json(),
        )


def nested_finetune(request: PruneRequest, pruned: Sequence[Path] = ()) -> Path:
    """Fine-tunes the source of a request so that one set of weights serves all its heads and every head budget of
    `pruned`.

    Heads are ranked once; a level of N heads is the N best of them. Every update trains the largest level, the smallest
    and one between, or one level alone (`settings.nested`). With `settings.distill` the levels learn from a teacher.
    Writes the checkpoint `nested` to the run folder, with the layout of the source, the ranking as gates and dev scores
    of every level, and returns its path. It is the average of the checkpoints whose mean dev BLEU over the levels is
    highest. An interrupted run resumes.

    pruned: checkpoints of the request's budgets. Empty: the targets give the numbers of heads, and
    `settings.nested.heads` names the ranking. Raises InvalidRequestError, InvalidArtifactError or
    DeviceUnavailableError with what to do.
    """
    return NestedRun(request, pruned).run()
