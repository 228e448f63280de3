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
from rich.console import Console

from hmc.artifact.checkpoint.checkpoint import (
    Checkpoint,
    CheckpointConfig,
    checkpoint_problems,
    load_config,
    read_layout,
    save_checkpoint,
)
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.architecture import Architecture, tensor_shapes
from hmc.artifact.model.heads import HeadLayout
from hmc.artifact.storage.files import write_digests, write_whole
from hmc.artifact.tokenizer.files import read_tokenizer
from hmc.training.data.corpus import count_pairs
from hmc.training.data.counts import Limit
from hmc.training.data.parallel_text import DevText, check_corpora, read_dev
from hmc.training.data.vocabulary import Vocabulary
from hmc.training.distillation.teacher import Distillation, load_teacher
from hmc.training.headmask.mask import HeadMask
from hmc.training.headmask.spec import HeadMaskSpec
from hmc.training.model.checkpoints import export_tensors
from hmc.training.model.evaluate import Scores, evaluate
from hmc.training.runs.folder import (
    KEPT,
    LAYOUT,
    RECIPE,
    WHERE,
    check_kept,
    check_training_folder,
    differences,
    has_results,
    where,
    working_in,
)
from hmc.training.runs.log import RunLog
from hmc.training.runs.loop import Loop, Schedule
from hmc.training.runs.processes import check_device, check_shared, first_process_first, naming_lost_processes
from hmc.training.runs.recipe import Recipe, TrainSection
from hmc.training.runs.run import Run
from hmc.training.runs.selection import Selection, why_ended
from hmc.training.runs.state import Inputs, RunProgress, saved_progress
from hmc.training.runs.updater import Update
from hmc.training.trainer.assemble import (
    architecture,
    check_parts,
    check_patience,
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

    Returns its dev text, and whether the run that the folder `out` holds goes on.

    Raises InvalidRequestError or InvalidArtifactError with what to do.
    """
    languages = (recipe.data.source_language, recipe.data.target_language)
    check_shape(recipe)
    check_patience(recipe.train, recipe.run)
    check_device(recipe.run)
    check_corpora(recipe.data.train, languages)
    dev = read_dev(recipe.data.dev, languages, recipe.run.eval_sentences)
    check_training_folder(out)
    goes_on = has_results(out)
    check_parts(recipe, begins=not goes_on)
    if goes_on:
        check_kept(out)
        check_same_run((out / RECIPE).read_text(encoding="utf-8"), recipe, out)
    return dev, goes_on


def check_same_run(stored: str, recipe: Recipe, out: Path) -> None:
    """Raises InvalidRequestError if `stored`, the text of a recipe.json, belongs to another run than the recipe. The
    error names the differences.

    `[run]` is not compared, even though some of its settings change the result. Settings missing in `stored`, which an
    earlier version may have written, have their defaults. `train.steps` may differ if the run ends with the same
    weights as a run that had this number from the start. `train.patience` may differ.
    """
    refused = f"{out} holds a run of another recipe"
    try:
        former = json.loads(stored)
        then = former.pop(WHERE, where(out))
        before = Recipe.model_validate(former | {"run": recipe.run})
    except (ValueError, TypeError, AttributeError):  # a ValidationError is a ValueError
        raise InvalidRequestError(f"{refused}, or of another version of HMC; choose another folder") from None
    former_fields = before.model_dump(mode="json", exclude={"run": True, "train": {"steps", "patience"}})
    here = recipe.model_dump(mode="json", exclude={"run": True, "train": {"steps", "patience"}})
    if different := differences(former_fields | {WHERE: then}, here | {WHERE: where(out)}):
        raise InvalidRequestError(
            f"{refused} ({'; '.join(different)}); give the same, choose another folder, or delete {out}"
        )
    if before.train.steps != recipe.train.steps:
        _check_length(before.train, recipe.train, saved_progress(out / "state", TrainingProgress).step, out)


def _check_length(before: TrainSection, now: TrainSection, done: int, out: Path) -> None:
    """Raises InvalidRequestError unless the updates that are done are those of a run of either length."""
    if now.steps <= done:
        raise InvalidRequestError(
            f"train.steps {now.steps:,}: the run in {out} has made {done:,} updates of {before.steps:,}; give more "
            f"than {done:,}, or choose another folder"
        )
    cooldown = now.cooldown_steps
    last_at_full_rate = min(before.steps, now.steps) - cooldown + 1
    if cooldown and done > last_at_full_rate:
        raise InvalidRequestError(
            f"train.steps {now.steps:,}: the run in {out}, of {before.steps:,} updates, has made {done:,}, and with "
            f"train.cooldown_steps {cooldown:,} the rates after update {last_at_full_rate:,} depend on train.steps; "
            f"give train.steps={before.steps} to finish this run, or begin another one from its checkpoint (another "
            "folder and model.start_from)"
        )


def plan_training(recipe: Recipe, out: Path) -> dict[str, str]:
    """What `train` would do, in words. Reads the texts to their end, but those on the hub.

    Raises InvalidRequestError or InvalidArtifactError with what to do.
    """
    recipe = settled(recipe)
    (dev, goes_on) = check_run(recipe, out)
    shape = recipe.model
    run = recipe.run
    settings = recipe.train
    data = recipe.data
    limit = _limit(recipe)
    kept = goes_on and has_tokenizer(out)
    vocabulary = Vocabulary(read_tokenizer(out)) if kept else known_vocabulary(recipe)
    counts = count_pairs(data.train, (data.source_language, data.target_language), vocabulary, limit.tokens)
    text = f"{', '.join(data.train)} ({data.source_language} to {data.target_language}): {counts.summary(limit)}"
    if vocabulary is None:
        text += f"; which of them are longer than {limit} shows when the tokenizer is trained"
    every = "epoch" if run.eval_every == "epoch" else f"{run.eval_every:,} updates"
    batch = f"{settings.batch_tokens * settings.accumulate * run.devices * run.nodes:,} tokens"
    saved = saved_progress(out / "state", TrainingProgress)
    ended = why_ended(settings, saved.evaluations) if saved.step < settings.steps else None
    folder = f"goes on after {saved.step:,} updates" if saved.step else "a new run"
    if ended:
        folder = f"ended after {saved.step:,} updates: {ended}"
    warnings = [*check_schedule(settings, run), *counts.warnings(limit)]
    warnings += dev.warnings(vocabulary, shape.max_positions) if vocabulary else dev.counts.warnings()
    return {
        "text": text,
        "dev text": f"{recipe.data.dev}: {dev.summary()}, every {every}",
        "model": f"{shape.encoder_layers} + {shape.decoder_layers} layers of {shape.heads} heads, width "
        f"{shape.d_model}, feed-forward {shape.ffn_dim}" + (f", from {shape.start_from}" if shape.start_from else ""),
        "updates": f"{settings.steps:,} of {batch}, by {settings.optimizer}"
        + (f", heads masked: {settings.headmask}" if settings.headmask else "")
        + (f", or until {settings.patience} evaluations have no better dev BLEU" if settings.patience else ""),
        "folder": f"{out}: {folder}",
        **({"warning": "; ".join(warnings)} if warnings else {}),
    }


def _limit(recipe: Recipe) -> Limit:
    return Limit(recipe.data.max_length, "data.max_length")


class TrainingRun(Run, Schedule):
    """One training run; `run()` trains."""

    evaluates = True

    def __init__(self, recipe: Recipe, out: Path) -> None:
        """Prepares the run in the folder `out`, or loads its last state from there.

        Raises InvalidRequestError, InvalidArtifactError or DeviceUnavailableError with what to do. The folder is
        written to only after all checks that need no tokenised text.
        """
        recipe = settled(recipe)
        dev, goes_on = check_run(recipe, out)
        super().__init__(out, recipe.run, dev, _limit(recipe))
        self.recipe = recipe
        check_shared(self.fabric, out, recipe.run.nodes)
        text = json.dumps(recipe.model_dump(mode="json", exclude={"run"}) | {WHERE: where(out)}, indent=1)
        is_same = goes_on and (out / RECIPE).read_text(encoding="utf-8") == text
        with self.preparing(RECIPE, None if is_same else text):
            self.vocabulary = make_vocabulary(recipe, out)
            corpus = make_corpus(recipe, self.vocabulary, out / "cache", first=self.is_first)
        arch = architecture(recipe, self.vocabulary)
        self.layout = self._layout(arch)
        self.model = self.seeded(recipe.train.seed, lambda: make_model(recipe, arch, self.layout))
        start_from = Path(recipe.model.start_from) if recipe.model.start_from else None
        teacher = load_teacher(recipe.distill, start_from, arch, self.vocabulary, recipe.data.max_length)
        distillation = Distillation(recipe.distill, teacher)
        self.inputs = Inputs(corpus, dev, teacher=distillation.digest)
        self.headmask = self._headmask(recipe.train)
        self.loop = Loop(
            self.fabric, self.model, [{"params": list(self.model.parameters()), "name": "model"}], self.inputs,
            recipe.train, recipe.run, TrainingProgress(), out / "state",
            masking=self.headmask.applied if self.headmask else None, distillation=distillation,
        )  # fmt: skip
        self.loop.resume()
        if self.headmask:
            self.headmask.log.restore(self.loop.progress.headmask)
        self.progress = self.loop.progress
        self.steps = recipe.train.steps
        self.selection = Selection(out / "checkpoints", recipe.run, self.progress.evaluations)
        self.selection.forget_extra(self.steps)
        self.final = out / "final"
        self.finished = (self.progress.step == self.steps or self.has_ended()) and self._is_written()
        """True when no update is left and the final checkpoint is complete."""

    def run(self) -> Path:
        """Trains to the last step and averages checkpoints; returns the path of the final checkpoint."""
        if self.finished:
            if self.has_ended() and self.is_first:
                text = f"{self.out} is finished: {self._early_end()}"
                Console(stderr=True).print(text, highlight=False, markup=False, soft_wrap=True)
            return self.final
        warnings = check_schedule(self.recipe.train, self.recipe.run)
        with self.reporting("train", self.steps, self.progress.step, self.inputs, warnings) as log:
            parameters = sum(map(math.prod, tensor_shapes(self.model.arch, self.layout).values()))
            log.say(f"{parameters:,} parameters")
            self._speed = _Speed()
            self.loop.run(self, log)
            if self.has_ended():
                log.say(self._early_end())
            self.write_result(self._finish, log)
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

    def evaluate(self, log: RunLog, *, due: bool) -> None:
        """Scores dev with every head of the layout open and writes a checkpoint; with HeadMask, the counts of masks."""
        scores = evaluate(self.model, self.vocabulary, self.dev.pairs, beam=1, bf16="bf16" in self.recipe.run.precision)
        step = self.progress.step
        log.report(step, {"dev BLEU": scores.bleu})
        self.selection.add(step, scores.bleu, self._checkpoint({"dev": scores.to_json()}), extra=not due)
        if self.headmask:
            self.headmask.log.note(step, self.out)
        self._speed.restart()

    def has_ended(self) -> bool:
        """Whether the dev BLEU no longer rises, as `train.patience` says. Only the first process knows this at once."""
        return self.progress.step < self.steps and why_ended(self.recipe.train, self.progress.evaluations) is not None

    # -- parts ---------------------------------------------------------------------------------------------------

    def _layout(self, arch: Architecture) -> HeadLayout:
        """Returns the head layout of the run, which the run folder keeps: the file it came from may change."""
        path = self.out / LAYOUT
        with first_process_first(self.fabric):
            if path.is_file():
                return read_layout(path)
            layout = head_layout(self.recipe, arch)
            if self.recipe.model.layout is not None:
                write_whole(path, json.dumps(layout.to_json(), indent=1) + "\n")
                write_digests(self.out, KEPT)
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
            source_language=self.recipe.data.source_language,
            target_language=self.recipe.data.target_language,
            provenance={
                "command": "hmc train",
                "recipe": self.recipe.model_dump(mode="json"),
                "step": self.progress.step,
                "torch": torch.__version__,
                "platform": platform.platform(),
                **provenance,
            },
        )
        return Checkpoint(
            config=config,
            tensors=export_tensors(self.model),
            tokenizer=self.vocabulary.serialized,
            metrics=metrics,
        )

    def _early_end(self) -> str:
        """Says when and why the run ended before its last update, and how it goes on."""
        why = why_ended(self.recipe.train, self.progress.evaluations)
        return f"ended after update {self.progress.step:,} of {self.steps:,}: {why}. A larger train.patience goes on"

    def _is_written(self) -> bool:
        """True when the final checkpoint is complete, and made after as many updates: a shorter run may have left it.

        Earlier versions did not write the number of updates, which was `train.steps`.
        """
        if not self.final.is_dir() or checkpoint_problems(self.final):
            return False
        provenance = load_config(self.final).provenance
        steps = provenance.get("recipe", {}).get("train", {}).get("steps", self.steps)
        return bool(provenance.get("updates", steps) == self.progress.step)

    def _finish(self, log: RunLog) -> None:
        """Writes the final checkpoint: the average of checkpoints, or the best one (see `Selection.choose`)."""

        def score(candidate: str) -> Scores:
            scores = evaluate(self.model, self.vocabulary, self.dev.pairs, beam=4)
            log.say(f"{candidate}: dev BLEU {scores.bleu:.2f} (beam 4)")
            return scores

        name, steps, scores = self.selection.choose(self.model, score)
        steps = sorted(steps)
        averaged = {"step": steps[-1], "checkpoints": steps, "updates": self.progress.step}
        save_checkpoint(self._checkpoint({"dev": scores.to_json()}, **averaged), self.final)
        log.say(f"kept the {name}: {self.final}")


class _Speed:
    """Target tokens per second since the last restart."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.tokens = torch.tensor(0)

    def add(self, update: Update) -> None:
        """Counts the tokens of an update."""
        self.tokens = self.tokens.to(update.tokens.device) + update.tokens

    def restart(self) -> float:
        """Returns the speed since the last restart."""
        now = time.monotonic()
        tokens = int(self.tokens)
        speed = tokens / (now - self.began)
        self.began = now
        self.tokens = torch.tensor(0)
        return speed


@naming_lost_processes()
def train(recipe: Recipe, out: Path) -> Path:
    """Runs, or resumes, a training run in the folder `out`; returns the path of the final checkpoint.

    Raises InvalidRequestError, InvalidArtifactError or DeviceUnavailableError with what to do; RetryableError where
    another process of the run has ended; Stopped after SIGTERM or Ctrl-C, when the state is saved.
    """
    with working_in(out):
        return TrainingRun(recipe, out).run()
