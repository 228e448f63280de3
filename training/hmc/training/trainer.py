"""`hmc train`: from a recipe to a checkpoint. Resumes exactly where it was killed."""

from __future__ import annotations

import json
import platform
import shutil
import time
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from hmc.artifact.architecture import Architecture
from hmc.artifact.checkpoint import Checkpoint, CheckpointConfig, copy_checkpoint, load_checkpoint, save_checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.heads import HeadLayout
from hmc.training.average import average_tensors
from hmc.training.allocator import keep_freed_memory
from hmc.training.batches import BatchStream
from hmc.training.convert import export_tensors, import_tensors
from hmc.training.corpus import Pair, Segmentation, TokenCorpus, read_pairs
from hmc.training.evaluate import Scores, evaluate
from hmc.training.progress import RunLog
from hmc.training.recipe import Recipe
from hmc.training.state import load_state, save_state
from hmc.training.transformer import build_transformer
from hmc.training.updater import Updater, make_fabric, make_optimizer
from hmc.training.vocabulary import Vocabulary


@dataclass
class RunProgress:
    """What a resumed run must know besides weights, moments and random numbers."""

    step: int = 0
    epoch: int = 0
    index: int = 0
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    """`{"step", "bleu"}` of every dev evaluation."""


class TrainingRun:
    """Everything of one run in one place; `run()` is the loop."""

    def __init__(self, recipe: Recipe, out: Path) -> None:
        self.recipe, self.out = recipe, out
        out.mkdir(parents=True, exist_ok=True)
        self._check_recipe()
        self.fabric = make_fabric(recipe.run)
        self.languages = (recipe.data.source_language, recipe.data.target_language)
        self.vocabulary = self._vocabulary()
        data = recipe.data
        self.corpus = TokenCorpus.build(
            data.train, self.vocabulary, data.max_length, out / "cache", self.languages, _segmentation(recipe)
        )
        if not len(self.corpus):
            raise InvalidRequestError(
                f"data.train {data.train}: no sentence pair of 1 to {data.max_length} tokens a side"
            )
        self.dev: list[Pair] = list(islice(read_pairs(data.dev, self.languages), recipe.run.eval_sentences))
        torch.manual_seed(recipe.train.seed)
        self.model = build_transformer(architecture(recipe, self.vocabulary), dropout=recipe.train.dropout)
        self.progress = RunProgress()
        self.stream = BatchStream(
            self.corpus, recipe.train.batch_tokens, recipe.train.seed, self.vocabulary.pad_id,
            self.fabric.global_rank, self.fabric.world_size,
        )  # fmt: skip
        optimizer = make_optimizer([{"params": list(self.model.parameters()), "name": "model"}], recipe.train)
        self.updater = Updater(self.fabric, self.model, optimizer, iter(self.stream), recipe.train)
        self._resume()

    def run(self) -> Path:
        """Trains to the last step, averages, and returns the path of the final checkpoint."""
        settings, run, progress = self.recipe.train, self.recipe.run, self.progress
        self.model.train()
        with RunLog("train", self.out, settings.steps, progress.step) as log:
            log.say(f"{len(self.corpus):,} pairs, {sum(p.numel() for p in self.model.parameters()):,} parameters")
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
            return self._finish(log)

    # -- parts ---------------------------------------------------------------------------------------------------

    def _check_recipe(self) -> None:
        """A run folder belongs to one recipe; only how it is carried out may change on resume."""
        path = self.out / "recipe.json"
        current = json.dumps(self.recipe.model_dump(mode="json", exclude={"run"}), indent=1)
        if path.is_file() and path.read_text() != current:
            raise InvalidRequestError(f"{self.out} holds a run of another recipe; choose another --out or delete it")
        path.write_text(current)

    def _vocabulary(self) -> Vocabulary:
        path, settings = self.out / "tokenizer.model", self.recipe.tokenizer
        if not path.is_file():
            if settings.model:
                path.write_bytes(Path(settings.model).read_bytes())
            else:
                text = (
                    s for corpus in self.recipe.data.train for pair in read_pairs(corpus, self.languages) for s in pair
                )
                path.write_bytes(Vocabulary.train(text, settings.vocab_size, self.recipe.train.seed).serialized)
        return Vocabulary(path.read_bytes())

    def _save(self) -> None:
        self.progress.epoch, self.progress.index = self.stream.epoch, self.stream.index
        if self.fabric.is_global_zero:
            save_state(self.out / "state", self.model, self.updater.optimizer, vars(self.progress))

    def _resume(self) -> None:
        if not (self.out / "state").is_dir():
            return
        self.progress = RunProgress(**load_state(self.out / "state", self.model, self.updater.optimizer))
        self.stream.epoch, self.stream.index = self.progress.epoch, self.progress.index

    def _evaluate(self, log: RunLog) -> Scores:
        scores = evaluate(self.model, self.vocabulary, self.dev, beam=1, bf16="bf16" in self.recipe.run.precision)
        step = self.progress.step
        log.report(step, {"dev BLEU": scores.bleu})
        if self.fabric.is_global_zero:
            save_checkpoint(self._checkpoint({"dev": scores.to_json()}), self._step_path(step))
            self.progress.evaluations.append({"step": step, "bleu": scores.bleu})
            for entry in self._best()[self.recipe.run.keep_checkpoints :]:
                shutil.rmtree(self._step_path(entry["step"]), ignore_errors=True)
        return scores

    def _best(self) -> list[dict[str, Any]]:
        return sorted(self.progress.evaluations, key=lambda e: -e["bleu"])

    def _step_path(self, step: int) -> Path:
        return self.out / "checkpoints" / f"step-{step:07d}"

    def _checkpoint(self, metrics: dict[str, Any]) -> Checkpoint:
        arch = self.model.arch
        return Checkpoint(
            config=checkpoint_config(arch, arch.full_layout(), self.languages, self._provenance()),
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

    def _finish(self, log: RunLog) -> Path:
        """Averages the best checkpoints and keeps the average when dev BLEU (beam 4) says it is better."""
        final = self.out / "final"
        if not self.fabric.is_global_zero:
            return final
        kept = [p for e in self._best() if (p := self._step_path(e["step"])).is_dir()][
            : self.recipe.run.keep_checkpoints
        ]
        candidates = {"best": [kept[0]], "average": kept}
        results: dict[str, Scores] = {}
        for name, paths in candidates.items():
            import_tensors(self.model, average_tensors([load_checkpoint(p) for p in paths]))
            results[name] = evaluate(self.model, self.vocabulary, self.dev, beam=4)
            log.say(f"{name} of {len(paths)} checkpoint(s): dev BLEU {results[name].bleu:.2f} (beam 4)")
        if results["average"].bleu >= results["best"].bleu:
            chosen = "average"
            save_checkpoint(self._checkpoint({"dev": results[chosen].to_json()}), final)
        else:
            chosen = "best"
            copy_checkpoint(kept[0], final)
        log.say(f"kept the {chosen}: {final}")
        return final


def architecture(recipe: Recipe, vocabulary: Vocabulary) -> Architecture:
    """The architecture a recipe describes, for a vocabulary."""
    model = recipe.model
    if model.head_dim is None and model.d_model % model.heads:
        raise InvalidRequestError(
            f"model.d_model {model.d_model} is not a multiple of model.heads {model.heads}; set model.head_dim"
        )
    return Architecture(
        vocab_size=len(vocabulary), d_model=model.d_model, ffn_dim=model.ffn_dim, encoder_layers=model.encoder_layers,
        decoder_layers=model.decoder_layers, heads=model.heads, head_dim=model.head_dim or model.d_model // model.heads,
        activation=model.activation, max_positions=model.max_positions, pad_id=vocabulary.pad_id,
        eos_id=vocabulary.eos_id, unk_id=vocabulary.unk_id,
    )  # fmt: skip


def _segmentation(recipe: Recipe) -> Segmentation:
    tokenizer = recipe.tokenizer
    copies = tokenizer.bpe_dropout_copies if tokenizer.bpe_dropout else 1
    return Segmentation(tokenizer.bpe_dropout, copies, recipe.train.seed)


def checkpoint_config(
    arch: Architecture, layout: HeadLayout, languages: tuple[str, str], provenance: dict[str, Any]
) -> CheckpointConfig:
    """config.json of a checkpoint."""
    return CheckpointConfig(
        architecture=arch,
        head_layout=layout.to_json(),
        source_language=languages[0],
        target_language=languages[1],
        provenance=provenance,
    )


def train(recipe: Recipe, out: Path) -> Path:
    """Runs (or resumes) a training run in `out`; returns the final checkpoint's path."""
    keep_freed_memory()
    return TrainingRun(recipe, out).run()
