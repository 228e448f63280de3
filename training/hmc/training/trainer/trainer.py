"""The training loop: from a recipe to a checkpoint. A run that was interrupted resumes exactly."""

from __future__ import annotations

import json
import math
import platform
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hmc.artifact.checkpoint.checkpoint import (
    Checkpoint,
    CheckpointConfig,
    checkpoint_problems,
    read_layout,
    save_checkpoint,
)
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.architecture import Architecture, tensor_shapes
from hmc.artifact.model.heads import HeadLayout
from hmc.training.data.batches import BatchStream
from hmc.training.data.parallel_text import check_corpora, read_dev
from hmc.training.distillation.teacher import Distillation, check_same_teacher, load_teacher
from hmc.training.headmask.mask import HeadMask
from hmc.training.headmask.spec import HeadMaskSpec
from hmc.training.model.checkpoints import export_tensors, import_tensors
from hmc.training.model.evaluate import Scores, evaluate
from hmc.training.runs.folder import RECIPE, check_training_folder, has_results, take_over
from hmc.training.runs.log import RunLog
from hmc.training.runs.processes import first_process_first, seed_process
from hmc.training.runs.recipe import Recipe, TrainSection, same_run
from hmc.training.runs.selection import Selection
from hmc.training.runs.shared import check_shared
from hmc.training.runs.state import load_state, progress_from, save_state
from hmc.training.runs.updater import Masking, Update, Updater, make_fabric, make_optimizer
from hmc.training.trainer.assemble import (
    architecture,
    check_shape,
    head_layout,
    make_corpus,
    make_model,
    make_vocabulary,
)


@dataclass
class RunProgress:
    """How far a run has come: what a saved state holds besides weights, moments and random numbers."""

    step: int = 0
    epoch: int = 0
    index: int = 0
    """Batch within the epoch."""
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    """`{"step", "bleu"}` of every dev evaluation."""
    corpus: str = ""
    """Fingerprint of the tokenised training text; empty in states of earlier versions."""
    dev: str = ""
    """Fingerprint of the dev text; empty in states of earlier versions."""
    teacher: str = ""
    """Digest of the teacher; empty without one."""


class TrainingRun:
    """One training run; `run()` trains."""

    def __init__(self, recipe: Recipe, out: Path) -> None:
        """Prepares the run in the folder `out`, or loads its last state from there.

        Raises InvalidRequestError, InvalidArtifactError or DeviceUnavailableError with what to do. The folder is
        written to only after all checks that need no tokenised text.
        """
        self.recipe, self.out = recipe, out
        self.languages = (recipe.data.source_language, recipe.data.target_language)
        check_shape(recipe)
        check_corpora(recipe.data.train, self.languages)
        self.dev = read_dev(recipe.data.dev, self.languages, recipe.run.eval_sentences)
        check_training_folder(out)
        resumes = self._is_same_recipe()
        self.fabric = make_fabric(recipe.run)  # after it, all processes have checked the folder: now it may be written
        check_shared(self.fabric, out, recipe.run.nodes)
        with first_process_first(self.fabric):  # it writes these files, the other processes read them
            if self.fabric.is_global_zero and not (resumes and has_results(out)):
                take_over(out, RECIPE, json.dumps(recipe.model_dump(mode="json", exclude={"run"}), indent=1))
            self.vocabulary = make_vocabulary(recipe, out)
            self.corpus = make_corpus(recipe, self.vocabulary, out / "cache", first=self.fabric.is_global_zero)
        arch = architecture(recipe, self.vocabulary)
        self.layout = self._layout(arch)
        torch.manual_seed(recipe.train.seed)
        self.model = make_model(recipe, arch, self.layout)
        seed_process(self.fabric, recipe.train.seed)
        start_from = Path(recipe.model.start_from) if recipe.model.start_from else None
        teacher = load_teacher(recipe.distill, start_from, arch, self.vocabulary, recipe.data.max_length)
        self.progress = RunProgress(corpus=self.corpus.fingerprint, dev=self.dev.fingerprint)
        self.progress.teacher = teacher.digest if teacher else ""
        self.stream = BatchStream(
            self.corpus, recipe.train.batch_tokens, recipe.train.seed, self.vocabulary.pad_id,
            self.fabric.global_rank, self.fabric.world_size, self.fabric.device,
        )  # fmt: skip
        optimizer = make_optimizer([{"params": list(self.model.parameters()), "name": "model"}], recipe.train)
        self.updater = Updater(
            self.fabric, self.model, optimizer, iter(self.stream), recipe.train, self._masking(recipe.train),
            compiled=recipe.run.compile, distillation=Distillation(recipe.distill, teacher),
        )  # fmt: skip
        self._resume()
        self.selection = Selection(out / "checkpoints", recipe.run, self.progress.evaluations)
        self.final = out / "final"
        self.finished = (
            self.progress.step == recipe.train.steps and self.final.is_dir() and not checkpoint_problems(self.final)
        )
        """True when all steps are done and the final checkpoint is complete."""

    def run(self) -> Path:
        """Trains to the last step and averages checkpoints; returns the path of the final checkpoint."""
        settings, run, progress = self.recipe.train, self.recipe.run, self.progress
        if self.finished:
            return self.final
        self.model.train()
        with RunLog("train", self.out, settings.steps, progress.step, active=self.fabric.is_global_zero) as log:
            parameters = sum(map(math.prod, tensor_shapes(self.model.arch, self.layout).values()))
            log.say(f"{len(self.corpus):,} pairs, {parameters:,} parameters")
            speed = _Speed()
            while progress.step < settings.steps:
                progress.step += 1
                update = self.updater.update(progress.step)
                speed.add(update)
                log.advance(progress.step)
                if progress.step % run.log_every == 0:
                    scalars = self.updater.tally.line() | {"norm": update.gradient_norm, "rate": update.rate}
                    scalars |= {"tokens/s": speed.restart(), "epoch": float(self.stream.epoch)}
                    log.report(progress.step, scalars)
                last = progress.step == settings.steps
                if progress.step % run.eval_every == 0 or last:
                    self.updater.tally.check()
                    with first_process_first(self.fabric):
                        if self.fabric.is_global_zero:
                            self._evaluate(log)
                    speed.restart()
                # The evaluation has shown that the last weights can be used, even if the last update was skipped.
                if (progress.step % run.save_every == 0 and self.updater.tally.check()) or last:
                    self._save()
            self.fabric.barrier()  # `final` is not written before every process has seen that it is missing
            with first_process_first(self.fabric):  # no process leaves or reads `final` before it is written
                if self.fabric.is_global_zero:
                    self._finish(log)
        return self.final

    # -- parts ---------------------------------------------------------------------------------------------------

    def _is_same_recipe(self) -> bool:
        """True when the folder's recipe is this one. Raises InvalidRequestError when it is not and there are results.

        `[run]` is not compared: it may change when a run resumes.
        """
        path = self.out / RECIPE
        same = path.is_file() and same_run(path.read_text(encoding="utf-8"), self.recipe)
        if not same and has_results(self.out):
            raise InvalidRequestError(f"{self.out} holds a run of another recipe; choose another --out or delete it")
        return same

    def _layout(self, arch: Architecture) -> HeadLayout:
        """Returns the head layout of the run, which the run folder keeps: the file it came from may change."""
        path = self.out / "layout.json"
        with first_process_first(self.fabric):
            if path.is_file():
                return read_layout(path)
            layout = head_layout(self.recipe, arch)
            if self.recipe.model.layout is not None:
                path.write_text(json.dumps(layout.to_json(), indent=1) + "\n")
            return layout

    def _masking(self, settings: TrainSection) -> Masking | None:
        if settings.headmask is None:
            return None
        spec = HeadMaskSpec.parse(settings.headmask)
        return HeadMask(self.model, self.layout, spec, settings.seed, settings.label_smoothing).applied

    def _save(self) -> None:
        self.progress.epoch, self.progress.index = self.stream.epoch, self.stream.index
        save_state(self.out / "state", self.model, self.updater.optimizer, vars(self.progress), self.fabric)

    def _resume(self) -> None:
        """Loads the last saved state, if there is one."""
        if not (self.out / "state").is_dir():
            return
        progress = load_state(self.out / "state", self.model, self.updater.optimizer, self.fabric)
        teacher = self.progress.teacher
        self.progress = progress_from(RunProgress, progress, self.out / "state")
        self.corpus.check_same(self.progress.corpus, self.out / "state")
        self.dev.check_same(self.progress.dev, self.out / "state")
        check_same_teacher(self.progress.teacher, teacher, self.out / "state")
        self.progress.corpus, self.progress.dev = self.corpus.fingerprint, self.dev.fingerprint
        self.stream.epoch, self.stream.index = self.progress.epoch, self.progress.index

    def _evaluate(self, log: RunLog) -> None:
        """Scores dev with every head of the layout open and writes a checkpoint. For the first process."""
        scores = evaluate(self.model, self.vocabulary, self.dev.pairs, beam=1, bf16="bf16" in self.recipe.run.precision)
        step = self.progress.step
        log.report(step, {"dev BLEU": scores.bleu})
        save_checkpoint(self._checkpoint({"dev": scores.to_json()}), self.selection.path(step))
        self.progress.evaluations.append({"step": step, "bleu": scores.bleu})
        self.selection.remove_surplus()

    def _checkpoint(self, metrics: dict[str, Any], **provenance: Any) -> Checkpoint:
        config = CheckpointConfig(
            architecture=self.model.arch,
            head_layout=self.layout.to_json(),
            source_language=self.languages[0],
            target_language=self.languages[1],
            provenance={**self._provenance(), **provenance},
        )
        return Checkpoint(
            config=config,
            tensors=export_tensors(self.model),
            tokenizer=self.vocabulary.serialized,
            metrics=metrics,
        )

    def _provenance(self) -> dict[str, Any]:
        return {
            "command": "hmc train",
            "recipe": self.recipe.model_dump(mode="json"),
            "step": self.progress.step,
            "torch": torch.__version__,
            "platform": platform.platform(),
        }

    def _finish(self, log: RunLog) -> None:
        """Writes the final checkpoint: the average of checkpoints, or the best one (see `Selection.choose`)."""

        def score(name: str, steps: list[int]) -> Scores:
            import_tensors(self.model, self.selection.average(steps))
            found = evaluate(self.model, self.vocabulary, self.dev.pairs, beam=4)
            log.say(f"{name} of {len(steps)} checkpoint(s): dev BLEU {found.bleu:.2f} (beam 4)")
            return found

        name, steps, scores = self.selection.choose(score)
        import_tensors(self.model, self.selection.average(steps))
        steps = sorted(steps)
        save_checkpoint(self._checkpoint({"dev": scores.to_json()}, step=steps[-1], checkpoints=steps), self.final)
        log.say(f"kept the {name}: {self.final}")


class _Speed:
    """Target tokens per second since the last restart."""

    def __init__(self) -> None:
        self.began, self.tokens = time.monotonic(), torch.tensor(0)

    def add(self, update: Update) -> None:
        """Counts the tokens of an update."""
        self.tokens = self.tokens.to(update.tokens.device) + update.tokens

    def restart(self) -> float:
        """Returns the speed since the last restart."""
        now, tokens = time.monotonic(), int(self.tokens)
        speed = tokens / (now - self.began)
        self.began, self.tokens = now, torch.tensor(0)
        return speed


def train(recipe: Recipe, out: Path) -> Path:
    """Runs, or resumes, a training run in the folder `out`; returns the path of the final checkpoint.

    Raises InvalidRequestError, InvalidArtifactError or DeviceUnavailableError with what to do.
    """
    return TrainingRun(recipe, out).run()
