"""Nested fine-tuning: one set of weights that serves several head budgets, and every budget between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hmc.artifact.checkpoint.checkpoint import CONFIG, Checkpoint, checkpoint_digest, load_checkpoint, save_checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.budgets import HeadBudget
from hmc.artifact.model.heads import KINDS, HeadScores
from hmc.training.data.batches import make_batch
from hmc.training.data.parallel_text import check_corpora, read_dev
from hmc.training.data.vocabulary import Vocabulary
from hmc.training.distillation.teacher import Distillation, load_teacher
from hmc.training.model.checkpoints import export_tensors, import_tensors, model_from_checkpoint
from hmc.training.model.evaluate import Scores, evaluate
from hmc.training.model.importance import corpus_importance
from hmc.training.model.regimes import freeze, open_gates, select_layout
from hmc.training.pruning.levels import Levels, nested_ranking, numbers_of, ranking_without_closing
from hmc.training.pruning.request import length_limit, prune_corpus, request_text
from hmc.training.pruning.settings import PruneSettings
from hmc.training.runs.folder import REQUEST, WHERE, check_pruning_folder, differences, hold, take_over, where
from hmc.training.runs.log import RunLog
from hmc.training.runs.loop import Loop, Objective, Schedule
from hmc.training.runs.processes import first_process_first, make_fabric, seed_process
from hmc.training.runs.selection import Selection
from hmc.training.runs.state import Inputs, RunProgress
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


class NestedRun(Schedule):
    """One run of nested fine-tuning; `run()` trains. It has the arguments of `nested_finetune`."""

    evaluates = True
    part = "nested"
    """Name of the checkpoint that is written, and of what the run folder has beside it: `-state`, `-checkpoints`."""
    command = "hmc prune --nested-steps"
    mend = "give that number to --nested-steps"
    """What to do about a state of another number of updates."""

    def __init__(
        self, source: Path, pruned: Sequence[Path], train: Sequence[str], dev: str, out: Path,
        settings: PruneSettings, steps: int, targets: Sequence[HeadBudget] = (),
    ) -> None:  # fmt: skip
        self.base = load_checkpoint(source)
        self.out = out
        self.steps = steps
        self.state = out / f"{self.part}-state"
        self.settings = settings = settings.following(self.base.config.provenance)
        smaller = [load_checkpoint(path) for path in pruned]
        if any(checkpoint.ffn_widths != self.base.ffn_widths for checkpoint in smaller):
            raise InvalidRequestError(
                f"nested fine-tuning serves budgets of heads with one set of weights, and these checkpoints have lost "
                f"feed-forward neurons that {source} has: prune its neurons first, then the heads of the result"
            )
        below = [c.layout.total for c in smaller] or numbers_of(targets, self.base.layout.total)
        languages = (self.base.config.source_language, self.base.config.target_language)
        check_corpora(train, languages)
        self.dev = read_dev(dev, languages, settings.run.eval_sentences)
        self.vocabulary = Vocabulary(self.base.tokenizer)
        longest = length_limit(self.base, settings).tokens
        in_place = settings.nested.teacher == "in-place"
        teacher = None
        if not in_place or settings.distill.teacher:
            teacher = load_teacher(settings.distill, source, self.base.architecture, self.vocabulary, longest)
        text = None
        if not pruned and self.part == "nested":  # there were no closing stages, whose run keeps the request
            check_pruning_folder(out, [])
            request = {"source": str(source), "targets": [b.name for b in targets], "train": list(train), "dev": dev}
            text = request_text(out, request | {"nested_steps": steps}, settings)
        self.fabric = make_fabric(settings.run)
        with first_process_first(self.fabric, stops=True):
            if self.fabric.is_global_zero:
                hold(out)
            if text and self.fabric.is_global_zero:
                take_over(out, REQUEST, text)
            corpus = prune_corpus(self.base, train, settings, out / "cache")
        torch.manual_seed(settings.seed)
        self.model = model_from_checkpoint(self.base, dropout=settings.dropout)
        ranking: HeadScores = nested_ranking(smaller) if smaller else self._ranking()
        seed_process(self.fabric, settings.seed)
        inputs = Inputs(corpus, self.dev, checkpoint_digest(source), teacher.digest if teacher else "")
        own = settings.model_dump(mode="json", include={"nested", "distill"}) | {WHERE: where(out)}
        fresh = NestedProgress(steps=steps, settings=own)
        fresh.ranking = {kind: np.asarray(ranking[kind]).tolist() for kind in KINDS}
        self.loop = Loop(
            self.fabric, self.model, [{"params": freeze(self.model, settings.freeze), "name": "weights"}], inputs,
            settings.train_section(steps), settings.run, fresh, self.state,
            distillation=Distillation(settings.distill, teacher),
        )  # fmt: skip
        self.loop.resume(partial(self._check_same, fresh))
        self.progress = self.loop.progress
        self.progress.steps = steps
        self.progress.settings = fresh.settings
        self.progress.ranking = self.progress.ranking or fresh.ranking
        ranking = {kind: np.asarray(self.progress.ranking[kind], np.float32) for kind in KINDS}
        self.levels = Levels(
            self.base.layout, ranking, [self.base.layout.total, *below], settings.nested, settings.seed, steps
        )
        self.selection = Selection(out / f"{self.part}-checkpoints", settings.run, self.progress.evaluations)

    def run(self) -> Path:
        """Trains to the last update; returns the path of the checkpoint."""
        step = self.progress.step
        written = self.out / self.part
        if step == self.steps and self._is_written(written):
            return written
        first = self.fabric.is_global_zero
        with RunLog(self.part, self.out, self.steps, step, part=self.part, active=first) as log:
            limit = length_limit(self.base, self.settings)
            log.say_texts(self.loop.inputs, limit, self.vocabulary, self.base.architecture.max_positions)
            log.say_warnings(self.settings.warmup_problems(self.steps))
            self.loop.run(self, log)
            self.fabric.barrier()  # the result is not written before every process has seen that it is missing
            with first_process_first(self.fabric, stops=True):
                if self.fabric.is_global_zero:
                    self._finish(log, written)
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
        select_layout(self.model, self.base.layout, self.levels.of(heads))

    def _ranking(self) -> HeadScores:
        return ranking_without_closing(self.base, self.settings.nested.heads, self._importance)

    def _importance(self) -> HeadScores:
        """Measures I_h of the source on the dev text, on the CPU and without dropout."""
        longest = self.base.architecture.max_positions
        cut = self.vocabulary.cut
        encoded = (self.vocabulary.encode_pair(*pair) for pair in self.dev.pairs)
        pairs = [(cut(source, longest), cut(target, longest)) for source, target in encoded]
        batches = [
            make_batch(
                [s for s, _ in some], [t for _, t in some], self.vocabulary.pad_id, self.base.architecture.decoder_start
            )
            for some in (pairs[i : i + IMPORTANCE_BATCH] for i in range(0, len(pairs), IMPORTANCE_BATCH))
        ]
        return corpus_importance(self.model, batches, self.base.layout)

    def _check_same(self, asked: NestedProgress, saved: NestedProgress) -> None:
        """Raises InvalidRequestError when the saved state is of other settings or another number of updates."""
        if (saved.steps or self.steps) != self.steps or saved.step > self.steps:
            raise InvalidRequestError(
                f"{self.state} has {saved.steps or saved.step} steps, not {self.steps}; {self.mend}, or delete "
                "the folder to train anew"
            )
        there = {WHERE: asked.settings[WHERE]} | saved.settings
        if saved.settings and (found := differences(there, asked.settings)):
            raise InvalidRequestError(
                f"{self.state} belongs to other settings of nested fine-tuning or distillation ({'; '.join(found)}); "
                "give the same settings, or delete the folder to fine-tune anew"
            )

    def _is_written(self, path: Path) -> bool:
        """True when the checkpoint at `path` is the result of this run, not of an earlier one."""
        if not (path / CONFIG).is_file():
            return False
        made = load_checkpoint(path).config.provenance
        return (made.get("steps"), made.get("inputs")) == (self.steps, self.progress.fingerprints())

    def _finish(self, log: RunLog, path: Path) -> None:
        """Writes the average of the checkpoints of highest mean BLEU, or the best one (see `Selection.choose`)."""
        known: dict[tuple[int, ...], LevelScores] = {}

        def score(name: str, steps: list[int]) -> LevelScores:
            if tuple(steps) not in known:
                import_tensors(self.model, self.selection.average(steps))
                known[tuple(steps)] = found = self._score(beam=4)
                by_level = ", ".join(f"{heads} heads {scores.bleu:.2f}" for heads, scores in found.by_heads.items())
                log.say(f"{self.part}, {name} of {len(steps)} checkpoint(s): dev BLEU {by_level} (beam 4)")
            return known[tuple(steps)]

        _, steps, scores = self.selection.choose(score)
        import_tensors(self.model, self.selection.average(steps))
        save_checkpoint(self._checkpoint(scores, sorted(steps)), path)
        log.detail(f"wrote {path}")

    def _score(self, beam: int) -> LevelScores:
        """Returns dev scores with the heads of each budget open."""
        found = {}
        for heads in self.levels.scored:
            self._mask(heads)
            found[heads] = evaluate(self.model, self.vocabulary, self.dev.pairs, beam=beam)
        open_gates(self.model)
        return LevelScores(found)

    def _checkpoint(self, scores: LevelScores, averaged: Sequence[int] = ()) -> Checkpoint:
        provenance = {
            "command": self.command,
            "from": self.base.config.provenance,
            "settings": self.settings.model_dump(mode="json"),
            "budgets": self.levels.budgets,
            "steps": self.steps,
            "inputs": self.progress.fingerprints(),
        }
        return Checkpoint(
            config=self.base.config.model_copy(
                update={"provenance": provenance | ({"checkpoints": list(averaged)} if averaged else {})}
            ),
            tensors=export_tensors(self.model),
            tokenizer=self.base.tokenizer,
            gates=self.levels.ranking,
            metrics=scores.to_json(),
        )


def nested_finetune(
    source: Path, pruned: Sequence[Path], train: Sequence[str], dev: str, out: Path, settings: PruneSettings,
    steps: int, targets: Sequence[HeadBudget] = (),
) -> Path:  # fmt: skip
    """Fine-tunes `source` so that one set of weights serves all its heads and every head budget of `pruned`.

    Heads are ranked once; a level of N heads is the N best of them. Every update trains the largest level, the smallest
    and one between, or one level alone (`settings.nested`). With `settings.distill` the levels learn from a teacher.
    Writes the checkpoint `out / "nested"`, with the layout of `source`, the ranking as gates and dev scores of every
    level, and returns its path. It is the average of the checkpoints whose mean dev BLEU over the levels is highest. An
    interrupted run resumes.

    train: training corpora. dev: dev corpus. steps: updates. targets: the numbers of heads, if `pruned` is not given.
    `settings.nested.heads` then names the ranking. Raises InvalidRequestError, InvalidArtifactError or
    DeviceUnavailableError with what to do.
    """
    return NestedRun(source, pruned, train, dev, out, settings, steps, targets).run()
