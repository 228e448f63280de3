"""`hmc prune`: from a converged checkpoint to checkpoints with exactly N open heads (Voita et al. 2019, section 6),
exactly N feed-forward neurons (Behnke & Heafield 2021), or both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from hmc.artifact.budgets import HeadBudget
from hmc.artifact.checkpoint import checkpoint_digest, load_checkpoint, save_checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.ffn import NeuronBudget
from hmc.artifact.heads import KINDS, HeadLayout
from hmc.training.batches import BatchStream
from hmc.training.closing import HeadClosing, NeuronClosing, total_penalty
from hmc.training.convert import model_from_checkpoint
from hmc.training.evaluate import Scores, evaluate
from hmc.training.freezing import freeze
from hmc.training.gating import GateSet, HeadGates, gated_modules, mask_to_layout, open_gates
from hmc.training.neurons import NeuronGates, mask_neurons
from hmc.training.parallel_text import check_corpora, read_dev
from hmc.training.processes import seed_process
from hmc.training.progress import RunLog
from hmc.training.prune_inputs import Inputs, prune_corpus, requested
from hmc.training.prune_results import (
    describe_kept,
    describe_neurons,
    describe_undecided,
    pruned_checkpoint,
    write_trajectory,
)
from hmc.training.prune_settings import PruneSettings
from hmc.training.prune_stages import PruneProgress, Stage, as_budgets, plan_stages
from hmc.training.run_folder import REQUEST, check_pruning_folder, take_over
from hmc.training.state import load_state, progress_from, save_state
from hmc.training.updater import Updater, make_fabric, make_optimizer
from hmc.training.vocabulary import Vocabulary


class PruningRun:
    """One pruning run; `run()` returns the checkpoints written, one a budget."""

    def __init__(
        self,
        source: Path,
        targets: Sequence[int | HeadBudget],
        train: Sequence[str],
        dev: str,
        out: Path,
        settings: PruneSettings,
        neurons: Sequence[NeuronBudget] = (),
        nested_steps: int = 0,
    ) -> None:
        """source: converged checkpoint. targets: budgets, largest first (a number counts heads in settings.scope);
        empty with settings.l0_lambda, or where only neurons go. neurons: one budget for all targets, or as many.
        nested_steps: of the `nested_finetune` that follows; a part of the request.

        Raises InvalidRequestError, InvalidArtifactError.
        """
        self.source, self.out, self.settings = load_checkpoint(source), out, settings
        budgets = as_budgets(targets, settings)
        self.stages = plan_stages(budgets, self.source.layout, settings, neurons, self.source.ffn_widths.total)
        if nested_steps < 0:
            raise InvalidRequestError(f"--nested-steps {nested_steps}: give 0 (no nested fine-tuning) or more")
        config = self.source.config
        check_corpora(train)  # all that can be, before the folder belongs to this request
        self.dev = read_dev(dev, (config.source_language, config.target_language), settings.run.eval_sentences)
        check_pruning_folder(out, dict.fromkeys(stage.folder for stage in self.stages))
        request = {"source": str(source), "targets": [b.name for b in budgets], "train": list(train), "dev": dev}
        more = {"nested_steps": nested_steps} | ({"neurons": list(map(str, neurons))} if neurons else {})
        text = requested(out, request | more, settings)
        self.fabric = make_fabric(settings.run)
        self.vocabulary = Vocabulary(self.source.tokenizer)
        with self.fabric.rank_zero_first():
            if text and self.fabric.is_global_zero:
                take_over(out, REQUEST, text)
            corpus = prune_corpus(self.source, train, settings, out / "cache")
        torch.manual_seed(settings.seed)
        self.model = model_from_checkpoint(self.source, dropout=settings.dropout)
        seed_process(self.fabric, settings.seed)
        weights = freeze(self.model, settings.freeze)
        self.gates: HeadGates | None = None
        self.neurons: NeuronGates | None = None
        if budgets or not neurons:
            kinds = budgets[0].kinds if budgets else settings.scope
            self.gates = HeadGates(self.model, self.source.layout, settings.initial_log_alpha, kinds)
        if neurons:
            self.neurons = NeuronGates(self.model, settings.initial_log_alpha)
        section = settings.train_section(sum(s.steps for s in self.stages))
        named = (("gates", self.gates), ("neurons", self.neurons))
        optimizer = make_optimizer(
            [{"params": weights, "name": "weights"}]
            + [{"params": gates.parameters(), "name": name} for name, gates in named if gates],
            section,
        )
        self.stream = BatchStream(
            corpus, settings.batch_tokens, settings.seed, self.vocabulary.pad_id,
            self.fabric.global_rank, self.fabric.world_size,
        )  # fmt: skip
        self.updater = Updater(self.fabric, self.model, optimizer, iter(self.stream), section)
        self.inputs, self.progress = Inputs(corpus, self.dev, checkpoint_digest(source)), PruneProgress()
        self.inputs.note(self.progress)
        if (out / "state").is_dir():
            self._resume(out / "state")

    def run(self) -> list[Path]:
        """Runs (or resumes) every stage; returns the checkpoints' paths in the order of the budgets."""
        progress, first = self.progress, self.fabric.is_global_zero
        total = sum(s.steps for s in self.stages)
        done = sum(s.steps for s in self.stages[: progress.stage]) + progress.step
        with RunLog("prune", self.out, total, done, active=first) as log:
            if first and not progress.before:
                open_gates(self.model)
                progress.before = self._evaluate(log, "before").to_json()
            for number, stage in enumerate(self.stages):
                if number < progress.stage:
                    continue
                offset = sum(s.steps for s in self.stages[:number])
                self.model.train()
                if stage.kind == "close":
                    self._close(stage, offset, log)
                else:
                    self._recover(stage, offset, log)
                progress.stage, progress.step = number + 1, 0
                self._save()
        self.fabric.barrier()  # no process leaves before the last checkpoint is written
        return [self.out / stage.folder for stage in self.stages if stage.kind == "recover"]

    # -- stages --------------------------------------------------------------------------------------------------

    def _close(self, stage: Stage, offset: int, log: RunLog) -> None:
        """Sampled gates under pressure, down to the budgets; then heads and neurons are fixed."""
        progress, run = self.progress, self.settings.run
        heads, neurons = self._closings(stage)
        closings = [closing for closing in (heads, neurons) if closing]
        while progress.step < stage.steps:
            progress.step = step = progress.step + 1
            if closings[0].decided(step) and not closings[0].decided(step - 1):
                progress.undecided = heads.undecided() if heads else {}
                progress.neurons_undecided = neurons.undecided() if neurons else 0
            rates = {name: rate for closing in closings for name, rate in closing.rates(step).items()}
            update = self.updater.update(step, partial(total_penalty, closings, step), rates)
            for closing in closings:
                closing.after(step)
            log.advance(offset + step)
            if step % run.log_every == 0 or step == stage.steps:
                scalars = {"loss": update.loss}
                for closing in closings:
                    scalars |= closing.scalars(step)
                log.report(offset + step, scalars)
                progress.trajectory.append({"stage": progress.stage, "step": step, **scalars})
            if step % run.save_every == 0:
                if heads:
                    progress.starts, progress.pressures = heads.state()
                if neurons:
                    progress.neuron_starts, progress.neuron_pressures = neurons.state()
                self._save()
        if heads:
            layout = heads.layout()
            progress.layout = layout.to_json()
            counts = {kind: sum(map(len, layout[kind])) for kind in KINDS}
            log.say(f"{layout.total} open heads: {counts}; {describe_undecided(progress.undecided)}")
        if neurons:
            progress.neurons = neurons.kept()
            log.say(describe_neurons(progress.neurons, progress.neurons_undecided))

    def _closings(self, stage: Stage) -> tuple[HeadClosing | None, NeuronClosing | None]:
        """The closing of heads and that of neurons, each where it has gates, begun or as they were saved."""
        progress, heads, neurons = self.progress, None, None
        if self.gates:
            self.gates.sampled()
            former = HeadLayout.from_json(progress.layout) if progress.layout else None
            heads = HeadClosing(self.gates, stage.budget, stage.steps, self.settings, former)
            heads.begin()
        if self.neurons and stage.neurons is not None:
            self.neurons.sampled()
            neurons = NeuronClosing(self.neurons, stage.neurons, stage.steps, self.settings, progress.neurons)
            neurons.begin()
        if progress.step and heads:
            heads.restore(progress.starts, progress.pressures)
        if progress.step and neurons:
            neurons.restore(progress.neuron_starts, progress.neuron_pressures)
        return heads, neurons

    def _recover(self, stage: Stage, offset: int, log: RunLog) -> None:
        """The layout is fixed, the rate falls to zero; then the checkpoint is written."""
        progress, run = self.progress, self.settings.run
        if progress.layout:
            mask_to_layout(self.model, self.source.layout, HeadLayout.from_json(progress.layout))
        if progress.neurons:
            mask_neurons(self.model, progress.neurons)
        # Several processes wait for a gradient of every parameter, and masks have none for log α.
        zero = lambda: 0.0 * torch.cat([gates.log_alpha() for gates in self._gate_sets()]).sum()  # noqa: E731
        idle = zero if self.fabric.world_size > 1 else None
        while progress.step < stage.steps:
            progress.step = step = progress.step + 1
            rate = self.settings.learning_rate * (1 - (step - 1) / stage.steps)
            update = self.updater.update(step, idle, {"weights": rate, "gates": 0.0, "neurons": 0.0})
            log.advance(offset + step)
            if step % run.log_every == 0:
                log.report(offset + step, {"loss": update.loss, "rate": rate})
            if step % run.save_every == 0:
                self._save()
        if self.fabric.is_global_zero:
            after = self._evaluate(log, f"after, {describe_kept(progress)}")
            gates = (self.gates, self.neurons)
            pruned = pruned_checkpoint(self.source, self.model, gates, progress, self.settings, after)
            save_checkpoint(pruned, self.out / stage.folder)
            log.say(f"wrote {self.out / stage.folder}")

    # -- parts ---------------------------------------------------------------------------------------------------

    def _evaluate(self, log: RunLog, what: str) -> Scores:
        scores = evaluate(self.model, self.vocabulary, self.dev.pairs, beam=4)
        log.say(f"{what}: dev BLEU {scores.bleu:.2f} (beam 4, {scores.sentences} sentences)")
        return scores

    def _save(self) -> None:
        self.progress.epoch, self.progress.index = self.stream.epoch, self.stream.index
        # A mask has no parameters: the gates come back so that their log α are part of the state.
        masks = [(module, module.gate) for module in gated_modules(self.model)]
        for gates in self._gate_sets():
            gates.sampled()
        save_state(self.out / "state", self.model, self.updater.optimizer, asdict(self.progress), self.fabric)
        for module, gate in masks:
            module.gate = gate
        if self.fabric.is_global_zero:
            write_trajectory(self.out, self.progress.trajectory)

    def _gate_sets(self) -> list[GateSet]:
        return [gates for gates in (self.gates, self.neurons) if gates]

    def _resume(self, state: Path) -> None:
        saved = load_state(state, self.model, self.updater.optimizer, self.fabric)
        self.progress = progress_from(PruneProgress, saved, state)
        self.inputs.check_same(self.progress, state)
        self.stream.epoch, self.stream.index = self.progress.epoch, self.progress.index
