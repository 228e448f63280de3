"""Runs of `hmc train`: from a recipe to a checkpoint."""

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
from hmc.artifact.storage.files import write_whole
from hmc.artifact.tokenizer.files import read_tokenizer
from hmc.training.data.corpus import count_pairs
from hmc.training.data.counts import Limit
from hmc.training.data.parallel_text import DevText, check_corpora, read_dev
from hmc.training.data.vocabulary import Vocabulary
from hmc.training.distillation.teacher import Distillation, load_teacher
from hmc.training.headmask.mask import HeadMask
from hmc.training.headmask.spec import HeadMaskSpec
from hmc.training.model.checkpoints import export_tensors, import_tensors
from hmc.training.model.evaluate import Scores, evaluate
from hmc.training.runs.folder import RECIPE, check_training_folder, has_results, hold, release, take_over
from hmc.training.runs.log import RunLog
from hmc.training.runs.loop import Loop, Schedule
from hmc.training.runs.processes import (
    check_device,
    check_shared,
    first_process_first,
    make_fabric,
    naming_lost_processes,
    seed_process,
)
from hmc.training.runs.recipe import Recipe, TrainSection, same_run
from hmc.training.runs.selection import Selection
from hmc.training.runs.state import Inputs, RunProgress, updates_done
from hmc.training.runs.updater import Update
from hmc.training.trainer.assemble import (
    architecture,
    check_parts,
    check_schedule,
    check_shape,
    has_tokenizer,
    head_layout,
    known_vocabulary,
    make_corpus,
    make_model,
    make_vocabulary,
    settled,
)


@dataclass
class TrainingProgress(RunProgress):
    """How far a training run has come."""

    evaluations: list[dict[str, Any]] = field(default_factory=list)
    """`{"step", "bleu"}` of every dev evaluation."""
    headmask: dict[str, Any] = field(default_factory=dict)
    """`MaskLog.state`; empty without HeadMask, and in states of earlier versions."""


def check_run(recipe: Recipe, out: Path) -> tuple[DevText, bool]:
    """Checks a run as far as that takes no work, and writes nothing.

    Returns its dev text, and whether the folder `out` has this recipe.

    Raises InvalidRequestError or InvalidArtifactError with what to do.
    """
    languages = (recipe.data.source_language, recipe.data.target_language)
    check_shape(recipe)
    check_device(recipe.run)
    check_corpora(recipe.data.train, languages)
    dev = read_dev(recipe.data.dev, languages, recipe.run.eval_sentences)
    check_training_folder(out)
    path = out / RECIPE  # `[run]` is not compared: it may change when a run resumes
    same = path.is_file() and same_run(path.read_text(encoding="utf-8"), recipe)
    check_parts(recipe, begins=not has_results(out))
    if not same and has_results(out):
        raise InvalidRequestError(f"{out} holds a run of another recipe; choose another --out or delete it")
    return dev, same


def plan_training(recipe: Recipe, out: Path) -> dict[str, str]:
    """What `train` would do, in words. Reads the texts to their end, but those on the hub.

    Raises InvalidRequestError or InvalidArtifactError with what to do.
    """
    recipe = settled(recipe)
    (dev, same), shape, run, settings = check_run(recipe, out), recipe.model, recipe.run, recipe.train
    data, limit = recipe.data, _limit(recipe)
    kept = same and has_results(out) and has_tokenizer(out)
    vocabulary = Vocabulary(read_tokenizer(out)) if kept else known_vocabulary(recipe)
    counts = count_pairs(data.train, (data.source_language, data.target_language), vocabulary, limit.tokens)
    text = f"{', '.join(data.train)} ({data.source_language} to {data.target_language}): {counts.summary(limit)}"
    if vocabulary is None:
        text += f"; which of them are longer than {limit} shows when the tokenizer is trained"
    every = "epoch" if run.eval_every == "epoch" else f"{run.eval_every:,} updates"
    batch = f"{settings.batch_tokens * settings.accumulate * run.devices * run.nodes:,} tokens"
    done = updates_done(out / "state")
    warnings = [*check_schedule(settings), *counts.warnings(limit)]
    warnings += dev.warnings(vocabulary, shape.max_positions) if vocabulary else dev.counts.warnings()
    return {
        "text": text,
        "dev text": f"{recipe.data.dev}: {dev.summary()}, every {every}",
        "model": f"{shape.encoder_layers} + {shape.decoder_layers} layers of {shape.heads} heads, width "
        f"{shape.d_model}, feed-forward {shape.ffn_dim}" + (f", from {shape.start_from}" if shape.start_from else ""),
        "updates": f"{settings.steps:,} of {batch}, by {settings.optimizer}"
        + (f", heads masked: {settings.headmask}" if settings.headmask else ""),
        "folder": f"{out}: {f'goes on after {done:,} updates' if done else 'a new run'}",
        **({"warning": "; ".join(warnings)} if warnings else {}),
    }


def _limit(recipe: Recipe) -> Limit:
    return Limit(recipe.data.max_length, "data.max_length")


class TrainingRun(Schedule):
    """One training run; `run()` trains."""

    evaluates = True

    def __init__(self, recipe: Recipe, out: Path) -> None:
        """Prepares the run in the folder `out`, or loads its last state from there.

        Raises InvalidRequestError, InvalidArtifactError or DeviceUnavailableError with what to do. The folder is
        written to only after all checks that need no tokenised text.
        """
        recipe = settled(recipe)
        self.recipe, self.out = recipe, out
        self.languages = (recipe.data.source_language, recipe.data.target_language)
        self.dev, resumes = check_run(recipe, out)
        self.fabric = make_fabric(recipe.run)  # after it, all processes have checked the folder: now it may be written
        check_shared(self.fabric, out, recipe.run.nodes)
        with first_process_first(self.fabric):  # it writes these files, the other processes read them
            if self.fabric.is_global_zero:
                hold(out)
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
        inputs = Inputs(self.corpus, self.dev, teacher=teacher.digest if teacher else "")
        self.headmask = self._headmask(recipe.train)
        self.loop = Loop(
            self.fabric, self.model, [{"params": list(self.model.parameters()), "name": "model"}], inputs,
            recipe.train, recipe.run, TrainingProgress(), out / "state",
            masking=self.headmask.applied if self.headmask else None,
            distillation=Distillation(recipe.distill, teacher),
        )  # fmt: skip
        self.loop.resume()
        if self.headmask:
            self.headmask.log.restore(self.loop.progress.headmask)
        self.progress, self.steps = self.loop.progress, recipe.train.steps
        self.selection = Selection(out / "checkpoints", recipe.run, self.progress.evaluations)
        self.final = out / "final"
        self.finished = self.progress.step == self.steps and self.final.is_dir() and not checkpoint_problems(self.final)
        """True when all steps are done and the final checkpoint is complete."""

    def run(self) -> Path:
        """Trains to the last step and averages checkpoints; returns the path of the final checkpoint."""
        if self.finished:
            return self.final
        with RunLog("train", self.out, self.steps, self.progress.step, active=self.fabric.is_global_zero) as log:
            parameters = sum(map(math.prod, tensor_shapes(self.model.arch, self.layout).values()))
            log.say(f"{parameters:,} parameters")
            positions = self.model.arch.max_positions
            log.say_texts(self.loop.inputs, _limit(self.recipe), self.vocabulary, positions)
            log.say_warnings(check_schedule(self.recipe.train))
            self._speed = _Speed()
            self.loop.run(self, log)
            self.fabric.barrier()  # `final` is not written before every process has seen that it is missing
            with first_process_first(self.fabric):  # no process leaves or reads `final` before it is written
                if self.fabric.is_global_zero:
                    self._finish(log)
        return self.final

    # -- the schedule: every update follows the recipe ------------------------------------------------------------

    def after(self, step: int, update: Update) -> None:  # noqa: ARG002 - see Schedule
        """Counts the tokens of the update."""
        self._speed.add(update)

    def scalars(self, step: int, update: Update) -> dict[str, float]:  # noqa: ARG002 - see Schedule
        """Returns gradient norm, learning rate, speed and epoch; with HeadMask, the share of heads masked again."""
        scalars = {"norm": update.gradient_norm, "rate": update.rate}
        scalars |= self.headmask.log.line() if self.headmask else {}
        return scalars | {"tokens/s": self._speed.restart(), "epoch": float(self.loop.stream.epoch)}

    def note(self) -> None:
        """Notes how often each head was masked."""
        if self.headmask:
            self.progress.headmask = self.headmask.log.state()

    def evaluate(self, log: RunLog) -> None:
        """Scores dev with every head of the layout open and writes a checkpoint; with HeadMask, the counts of masks."""
        scores = evaluate(self.model, self.vocabulary, self.dev.pairs, beam=1, bf16="bf16" in self.recipe.run.precision)
        step = self.progress.step
        log.report(step, {"dev BLEU": scores.bleu})
        self.selection.add(step, scores.bleu, self._checkpoint({"dev": scores.to_json()}))
        if self.headmask:
            self.headmask.log.note(step, self.out)
        self._speed.restart()

    # -- parts ---------------------------------------------------------------------------------------------------

    def _layout(self, arch: Architecture) -> HeadLayout:
        """Returns the head layout of the run, which the run folder keeps: the file it came from may change."""
        path = self.out / "layout.json"
        with first_process_first(self.fabric):
            if path.is_file():
                return read_layout(path)
            layout = head_layout(self.recipe, arch)
            if self.recipe.model.layout is not None:
                write_whole(path, json.dumps(layout.to_json(), indent=1) + "\n")
            return layout

    def _headmask(self, settings: TrainSection) -> HeadMask | None:
        if settings.headmask is None:
            return None
        spec = HeadMaskSpec.parse(settings.headmask)
        return HeadMask(self.model, self.layout, spec, settings.seed, settings.label_smoothing)

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


@naming_lost_processes()
def train(recipe: Recipe, out: Path) -> Path:
    """Runs, or resumes, a training run in the folder `out`; returns the path of the final checkpoint.

    Raises InvalidRequestError, InvalidArtifactError or DeviceUnavailableError with what to do, and RetryableError where
    another process of the run has ended.
    """
    try:
        return TrainingRun(recipe, out).run()
    finally:
        release(out)
