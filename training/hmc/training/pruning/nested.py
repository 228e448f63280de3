"""Nested fine-tuning: one set of weights that serves several head budgets, and every budget between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hmc.artifact.checkpoint.checkpoint import CONFIG, Checkpoint, checkpoint_digest, load_checkpoint, save_checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.budgets import HeadBudget
from hmc.artifact.model.heads import KINDS, HeadScores
from hmc.training.data.batches import BatchStream, make_batch
from hmc.training.data.parallel_text import check_corpora, read_dev
from hmc.training.data.vocabulary import Vocabulary
from hmc.training.distillation.teacher import Distillation, load_teacher
from hmc.training.model.checkpoints import export_tensors, import_tensors, model_from_checkpoint
from hmc.training.model.evaluate import Scores, evaluate
from hmc.training.model.importance import corpus_importance
from hmc.training.model.regimes import freeze, mask_to_layout, open_gates
from hmc.training.pruning.inputs import Inputs, fingerprints_of, prune_corpus, request_text
from hmc.training.pruning.levels import Levels, nested_ranking, numbers_of, ranking_without_closing
from hmc.training.pruning.settings import PruneSettings
from hmc.training.runs.folder import REQUEST, check_pruning_folder, take_over
from hmc.training.runs.log import RunLog
from hmc.training.runs.processes import first_process_first, make_fabric, seed_process
from hmc.training.runs.selection import Selection
from hmc.training.runs.state import load_state, progress_from, save_state
from hmc.training.runs.updater import Updater, make_optimizer

CHECKPOINTS = "nested-checkpoints"
"""Folder of the checkpoints that are averaged at the end."""
IMPORTANCE_BATCH = 32
"""Dev sentences in a batch that measures importance."""


@dataclass
class NestedProgress:
    """How far a run has come: what a saved state holds besides weights, moments and random numbers."""

    step: int = 0
    epoch: int = 0
    index: int = 0
    """Batch within the epoch."""
    steps: int = 0
    """Updates asked for; 0 in states of earlier versions."""
    corpus: str = ""
    """Fingerprint of the tokenised training text. Empty, as the next two, in states of earlier versions."""
    dev: str = ""
    """Fingerprint of the dev text."""
    source: str = ""
    """Digest of the checkpoint that is fine-tuned."""
    teacher: str = ""
    """Digest of the teacher; empty without one, or when it is the model itself."""
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    """`{"step", "bleu"}` of every dev evaluation; BLEU is the mean over the levels."""
    ranking: dict[str, list[list[float]]] = field(default_factory=dict)
    """Scores of the heads; empty in states of earlier versions."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of nested fine-tuning and of distillation; empty in states of earlier versions."""


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


class NestedRun:
    """One run of nested fine-tuning; `run()` trains. The arguments are those of `nested_finetune`."""

    def __init__(
        self, source: Path, pruned: Sequence[Path], train: Sequence[str], dev: str, out: Path,
        settings: PruneSettings, steps: int, targets: Sequence[HeadBudget] = (),
    ) -> None:  # fmt: skip
        self.base, self.out, self.steps = load_checkpoint(source), out, steps
        self.settings = settings = settings.with_subwords_of(self.base.config.provenance)
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
        longest = min(settings.max_length, self.base.architecture.max_positions)
        in_place = settings.nested.teacher == "in-place"
        teacher = None
        if not in_place or settings.distill.teacher:
            teacher = load_teacher(settings.distill, source, self.base.architecture, self.vocabulary, longest)
        text = None
        if not pruned:  # there were no closing stages, whose run keeps the request
            check_pruning_folder(out, [])
            request = {"source": str(source), "targets": [b.name for b in targets], "train": list(train), "dev": dev}
            text = request_text(out, request | {"nested_steps": steps}, settings)
        self.fabric = make_fabric(settings.run)
        with first_process_first(self.fabric):
            if text and self.fabric.is_global_zero:
                take_over(out, REQUEST, text)
            corpus = prune_corpus(self.base, train, settings, out / "cache")
        torch.manual_seed(settings.seed)
        self.model = model_from_checkpoint(self.base, dropout=settings.dropout)
        ranking: HeadScores = nested_ranking(smaller) if smaller else self._ranking()
        seed_process(self.fabric, settings.seed)
        section = settings.train_section(steps)
        optimizer = make_optimizer([{"params": freeze(self.model, settings.freeze), "name": "weights"}], section)
        self.stream = BatchStream(
            corpus, settings.batch_tokens, settings.seed, self.vocabulary.pad_id,
            self.fabric.global_rank, self.fabric.world_size, self.fabric.device,
            start_id=self.base.architecture.decoder_start,
        )  # fmt: skip
        self.updater = Updater(
            self.fabric, self.model, optimizer, iter(self.stream), section, compiled=settings.run.compile,
            distillation=Distillation(settings.distill, teacher),
        )  # fmt: skip
        self.inputs = Inputs(corpus, self.dev, checkpoint_digest(source), teacher.digest if teacher else "")
        chosen = settings.model_dump(mode="json", include={"nested", "distill"})
        self.progress, self.state = NestedProgress(steps=steps, settings=chosen), out / "nested-state"
        self.progress.ranking = {kind: np.asarray(ranking[kind]).tolist() for kind in KINDS}
        self.inputs.note(self.progress)
        if self.state.is_dir():
            self._resume()
        ranking = {kind: np.asarray(self.progress.ranking[kind], np.float32) for kind in KINDS}
        self.levels = Levels(
            self.base.layout, ranking, [self.base.layout.total, *below], settings.nested, settings.seed, steps
        )
        self.selection = Selection(out / CHECKPOINTS, settings.run, self.progress.evaluations)

    def run(self) -> Path:
        """Trains to the last update; returns the path of the checkpoint."""
        progress, settings, written = self.progress, self.settings, self.out / "nested"
        if progress.step == self.steps and self._is_written(written):
            return written
        with RunLog("nested", self.out, self.steps, progress.step, active=self.fabric.is_global_zero) as log:
            self.model.train()
            while progress.step < self.steps:
                progress.step += 1
                trained = self.levels.trained(progress.step)
                passes = [partial(self._mask, heads) for heads in trained]
                rate = settings.warmed(settings.learning_rate * (1 - (progress.step - 1) / self.steps), progress.step)
                self.updater.update(progress.step, None, {"weights": rate}, passes)
                log.advance(progress.step)
                if progress.step % settings.run.log_every == 0:
                    scalars = self.updater.tally.line() | {"heads": float(trained[-1]), "rate": rate}
                    log.report(progress.step, scalars)
                last = progress.step == self.steps
                if progress.step % settings.run.eval_every == 0 or last:
                    self.updater.tally.check()
                    with first_process_first(self.fabric):
                        if self.fabric.is_global_zero:
                            self._evaluate(log)
                # The evaluation has shown that the last weights can be used, even if the last update was skipped.
                if (progress.step % settings.run.save_every == 0 and self.updater.tally.check()) or last:
                    progress.epoch, progress.index = self.stream.epoch, self.stream.index
                    save_state(self.state, self.model, self.updater.optimizer, asdict(progress), self.fabric)
            self.fabric.barrier()  # the result is not written before every process has seen that it is missing
            with first_process_first(self.fabric):
                if self.fabric.is_global_zero:
                    self._finish(log, written)
        return written

    # -- parts ---------------------------------------------------------------------------------------------------

    def _mask(self, heads: int) -> None:
        mask_to_layout(self.model, self.base.layout, self.levels.of(heads))

    def _ranking(self) -> HeadScores:
        return ranking_without_closing(self.base, self.settings.nested.heads, self._importance)

    def _importance(self) -> HeadScores:
        """Measures I_h of the source on the dev text, on the CPU and without dropout."""
        pairs = [self.vocabulary.encode_pair(*pair) for pair in self.dev.pairs]
        longest = self.base.architecture.max_positions
        pairs = [pair for pair in pairs if max(map(len, pair)) <= longest]
        batches = [
            make_batch(
                [s for s, _ in some], [t for _, t in some], self.vocabulary.pad_id, self.base.architecture.decoder_start
            )
            for some in (pairs[i : i + IMPORTANCE_BATCH] for i in range(0, len(pairs), IMPORTANCE_BATCH))
        ]
        return corpus_importance(self.model, batches, self.base.layout)

    def _resume(self) -> None:
        """Loads the saved state. Raises InvalidRequestError when it is of other inputs, settings or updates."""
        progress = progress_from(
            NestedProgress, load_state(self.state, self.model, self.updater.optimizer, self.fabric), self.state
        )
        self.inputs.check_same(progress, self.state)
        if (progress.steps or self.steps) != self.steps or progress.step > self.steps:
            raise InvalidRequestError(
                f"{self.state} is of {progress.steps or progress.step} steps, not {self.steps}; give that number to "
                "--nested-steps, or delete the folder to fine-tune anew"
            )
        if progress.settings and progress.settings != self.progress.settings:
            raise InvalidRequestError(
                f"{self.state} is of other settings of nested fine-tuning or distillation ({progress.settings}, not "
                f"{self.progress.settings}); give those, or delete the folder to fine-tune anew"
            )
        progress.steps, progress.settings = self.steps, self.progress.settings
        progress.ranking = progress.ranking or self.progress.ranking
        self.progress = progress
        self.stream.epoch, self.stream.index = progress.epoch, progress.index

    def _is_written(self, path: Path) -> bool:
        """True when the checkpoint at `path` is the result of this run, not of an earlier one."""
        if not (path / CONFIG).is_file():
            return False
        made = load_checkpoint(path).config.provenance
        return (made.get("steps"), made.get("inputs")) == (self.steps, fingerprints_of(self.progress))

    def _evaluate(self, log: RunLog) -> None:
        """Scores every level on dev by greedy search, and writes a checkpoint. For the first process."""
        scores, step = self._score(beam=1), self.progress.step
        log.report(step, {"dev BLEU": scores.bleu} | {f"h{h}": s.bleu for h, s in scores.by_heads.items()})
        save_checkpoint(self._checkpoint(scores), self.selection.path(step))
        self.progress.evaluations.append({"step": step, "bleu": scores.bleu})
        self.selection.remove_surplus()

    def _finish(self, log: RunLog, path: Path) -> None:
        """Writes the average of the checkpoints of highest mean BLEU, or the best one (see `Selection.choose`)."""
        known: dict[tuple[int, ...], LevelScores] = {}

        def score(name: str, steps: list[int]) -> LevelScores:
            if tuple(steps) not in known:
                import_tensors(self.model, self.selection.average(steps))
                known[tuple(steps)] = found = self._score(beam=4)
                by_level = ", ".join(f"{heads} heads {scores.bleu:.2f}" for heads, scores in found.by_heads.items())
                log.say(f"nested, {name} of {len(steps)} checkpoint(s): dev BLEU {by_level} (beam 4)")
            return known[tuple(steps)]

        _, steps, scores = self.selection.choose(score)
        import_tensors(self.model, self.selection.average(steps))
        save_checkpoint(self._checkpoint(scores, sorted(steps)), path)
        log.say(f"wrote {path}")

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
            "command": "hmc prune --nested-steps",
            "from": self.base.config.provenance,
            "settings": self.settings.model_dump(mode="json"),
            "budgets": self.levels.budgets,
            "steps": self.steps,
            "inputs": self.inputs.fingerprints(),
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

    train: training corpora. dev: dev corpus. steps: updates. targets: without `pruned`, the numbers of heads; then
    `settings.nested.heads` says what ranks them. Raises InvalidRequestError, InvalidArtifactError or
    DeviceUnavailableError with what to do.
    """
    return NestedRun(source, pruned, train, dev, out, settings, steps, targets).run()
