"""`hmc train`: from a recipe to a checkpoint. Resumes exactly where it was killed."""

from __future__ import annotations

import json
import math
import platform
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hmc.artifact.architecture import Architecture, tensor_shapes
from hmc.artifact.checkpoint import (
    Checkpoint,
    CheckpointConfig,
    checkpoint_problems,
    load_checkpoint,
    save_checkpoint,
)
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.heads import HeadLayout
from hmc.artifact.layout_files import read_layout
from hmc.training.average import average_tensors
from hmc.training.batches import BatchStream
from hmc.training.convert import export_tensors, import_tensors
from hmc.training.evaluate import Scores, evaluate
from hmc.training.from_recipe import architecture, check_shape, head_layout, make_corpus, make_model, make_vocabulary
from hmc.training.headmask import HeadMask
from hmc.training.headmask_spec import HeadMaskSpec
from hmc.training.parallel_text import check_corpora, read_dev
from hmc.training.processes import seed_process
from hmc.training.progress import RunLog
from hmc.training.recipe import Recipe, TrainSection, same_run
from hmc.training.run_folder import RECIPE, check_training_folder, has_results, take_over
from hmc.training.state import load_state, progress_from, save_state
from hmc.training.updater import Updater, make_fabric, make_optimizer

AVERAGE_MARGIN = 0.5
"""BLEU that the best checkpoint must be ahead of the average by: about the noise of a few hundred dev sentences."""


@dataclass
class RunProgress:
    """What a resumed run must know besides weights, moments and random numbers."""

    step: int = 0
    epoch: int = 0
    index: int = 0
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    """`{"step", "bleu"}` of every dev evaluation."""
    corpus: str = ""
    """Fingerprint of the tokenised training text; earlier versions kept none."""
    dev: str = ""
    """Fingerprint of the dev text; likewise."""


class TrainingRun:
    """Everything of one run in one place; `run()` is the loop."""

    def __init__(self, recipe: Recipe, out: Path) -> None:
        self.recipe, self.out = recipe, out
        self.languages = (recipe.data.source_language, recipe.data.target_language)
        check_shape(recipe)  # all that can be, before the folder belongs to this recipe
        check_corpora(recipe.data.train)
        self.dev = read_dev(recipe.data.dev, self.languages, recipe.run.eval_sentences)
        check_training_folder(out)
        resumes = self._is_same_recipe()
        self.fabric = make_fabric(recipe.run)  # every process has looked at the folder before the first writes to it
        with self.fabric.rank_zero_first():  # the first process writes these files, the others read them
            if self.fabric.is_global_zero and not (resumes and has_results(out)):
                take_over(out, RECIPE, json.dumps(recipe.model_dump(mode="json", exclude={"run"}), indent=1))
            self.vocabulary = make_vocabulary(recipe, out)
            self.corpus = make_corpus(recipe, self.vocabulary, out / "cache")
        arch = architecture(recipe, self.vocabulary)
        self.layout = self._layout(arch)
        torch.manual_seed(recipe.train.seed)
        self.model = make_model(recipe, arch, self.layout)
        seed_process(self.fabric, recipe.train.seed)
        self.progress = RunProgress(corpus=self.corpus.fingerprint, dev=self.dev.fingerprint)
        self.stream = BatchStream(
            self.corpus, recipe.train.batch_tokens, recipe.train.seed, self.vocabulary.pad_id,
            self.fabric.global_rank, self.fabric.world_size,
        )  # fmt: skip
        optimizer = make_optimizer([{"params": list(self.model.parameters()), "name": "model"}], recipe.train)
        self.updater = Updater(
            self.fabric, self.model, optimizer, iter(self.stream), recipe.train, self._headmask(recipe.train)
        )
        self._resume()
        self.final = out / "final"
        self.finished = (
            self.progress.step == recipe.train.steps and self.final.is_dir() and not checkpoint_problems(self.final)
        )
        """The run has come to its end, and what it has made is there."""

    def run(self) -> Path:
        """Trains to the last step, averages, and returns the path of the final checkpoint."""
        settings, run, progress = self.recipe.train, self.recipe.run, self.progress
        if self.finished:
            return self.final
        self.model.train()
        with RunLog("train", self.out, settings.steps, progress.step, active=self.fabric.is_global_zero) as log:
            parameters = sum(map(math.prod, tensor_shapes(self.model.arch, self.layout).values()))
            log.say(f"{len(self.corpus):,} pairs, {parameters:,} parameters")
            began, tokens = time.monotonic(), 0
            while progress.step < settings.steps:
                progress.step += 1
                update = self.updater.update(progress.step)
                tokens += update.tokens
                log.advance(progress.step)
                if progress.step % run.log_every == 0:
                    rate = tokens / (time.monotonic() - began)
                    scalars = {"loss": update.loss, "norm": update.gradient_norm, "rate": update.rate, "tokens/s": rate}
                    log.report(progress.step, scalars | {"epoch": float(self.stream.epoch)})
                    began, tokens = time.monotonic(), 0
                last = progress.step == settings.steps
                if progress.step % run.eval_every == 0 or last:
                    self._evaluate(log)
                    began, tokens = time.monotonic(), 0
                if progress.step % run.save_every == 0 or last:
                    self._save()
            self.fabric.barrier()  # `final` is not written before every process has seen that it is not there
            if self.fabric.is_global_zero:
                self._finish(log)
        self.fabric.barrier()  # no process leaves, and none reads `final`, before it is written
        return self.final

    # -- parts ---------------------------------------------------------------------------------------------------

    def _is_same_recipe(self) -> bool:
        """A run folder with results belongs to one recipe; only how it is carried out may change on resume."""
        path = self.out / RECIPE
        same = path.is_file() and same_run(path.read_text(encoding="utf-8"), self.recipe)
        if not same and has_results(self.out):
            raise InvalidRequestError(f"{self.out} holds a run of another recipe; choose another --out or delete it")
        return same

    def _layout(self, arch: Architecture) -> HeadLayout:
        """The head layout of the run, kept in the run folder: the file it came from may change."""
        path = self.out / "layout.json"
        with self.fabric.rank_zero_first():
            if path.is_file():
                return read_layout(path)
            layout = head_layout(self.recipe, arch)
            if self.recipe.model.layout is not None:
                path.write_text(json.dumps(layout.to_json(), indent=1) + "\n")
            return layout

    def _headmask(self, settings: TrainSection) -> HeadMask | None:
        if settings.headmask is None:
            return None
        spec = HeadMaskSpec.parse(settings.headmask)
        return HeadMask(self.model, self.layout, spec, settings.seed, settings.label_smoothing)

    def _save(self) -> None:
        self.progress.epoch, self.progress.index = self.stream.epoch, self.stream.index
        save_state(self.out / "state", self.model, self.updater.optimizer, vars(self.progress), self.fabric)

    def _resume(self) -> None:
        if not (self.out / "state").is_dir():
            return
        progress = load_state(self.out / "state", self.model, self.updater.optimizer, self.fabric)
        self.progress = progress_from(RunProgress, progress, self.out / "state")
        self.corpus.check_same(self.progress.corpus, self.out / "state")
        self.dev.check_same(self.progress.dev, self.out / "state")
        self.progress.corpus, self.progress.dev = self.corpus.fingerprint, self.dev.fingerprint
        self.stream.epoch, self.stream.index = self.progress.epoch, self.progress.index

    def _evaluate(self, log: RunLog) -> None:
        """Scores dev with every head of the layout open, and keeps a checkpoint; in the first process only."""
        if not self.fabric.is_global_zero:
            return
        scores = evaluate(self.model, self.vocabulary, self.dev.pairs, beam=1, bf16="bf16" in self.recipe.run.precision)
        step = self.progress.step
        log.report(step, {"dev BLEU": scores.bleu})
        save_checkpoint(self._checkpoint({"dev": scores.to_json()}), self._step_path(step))
        self.progress.evaluations.append({"step": step, "bleu": scores.bleu})
        for entry in self._best()[self.recipe.run.keep_checkpoints :]:
            shutil.rmtree(self._step_path(entry["step"]), ignore_errors=True)

    def _best(self) -> list[dict[str, Any]]:
        return sorted(self.progress.evaluations, key=lambda e: -e["bleu"])

    def _step_path(self, step: int) -> Path:
        return self.out / "checkpoints" / f"step-{step:07d}"

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
        """Averages the best checkpoints; keeps the average unless dev BLEU (beam 4) speaks clearly for the best one.

        The best one was chosen by dev BLEU, so its own is flattering; the average's is not.
        """
        kept = self._kept()
        candidates = {"best": kept[:1], "average": kept}
        results: dict[str, Scores] = {}
        for name, steps in candidates.items():
            self._average(steps)
            results[name] = evaluate(self.model, self.vocabulary, self.dev.pairs, beam=4)
            log.say(f"{name} of {len(steps)} checkpoint(s): dev BLEU {results[name].bleu:.2f} (beam 4)")
        chosen = "average" if results["average"].bleu >= results["best"].bleu - AVERAGE_MARGIN else "best"
        self._average(candidates[chosen])
        steps = sorted(candidates[chosen])
        save_checkpoint(
            self._checkpoint({"dev": results[chosen].to_json()}, step=steps[-1], checkpoints=steps), self.final
        )
        log.say(f"kept the {chosen}: {self.final}")

    def _kept(self) -> list[int]:
        """Steps of the checkpoints that count, best dev BLEU first. Raises InvalidRequestError where none is left."""
        there = [entry["step"] for entry in self._best() if self._step_path(entry["step"]).is_dir()]
        if not there:
            raise InvalidRequestError(
                f"{self.out / 'checkpoints'} has none of the run's checkpoints: bring one back, or train again in "
                "another --out"
            )
        return there[: self.recipe.run.keep_checkpoints]

    def _average(self, steps: list[int]) -> None:
        """Gives the model the mean of the weights of these steps."""
        import_tensors(self.model, average_tensors([load_checkpoint(self._step_path(step)) for step in steps]))


def train(recipe: Recipe, out: Path) -> Path:
    """Runs (or resumes) a training run in `out`; returns the final checkpoint's path."""
    return TrainingRun(recipe, out).run()
