"""The pruning loop: from a converged checkpoint to checkpoints with exactly N heads (Voita et al. 2019, section 6),
exactly N feed-forward neurons (Behnke & Heafield 2021), or both. A run that was interrupted resumes exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hmc.artifact.checkpoint.checkpoint import checkpoint_digest, load_checkpoint, save_checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.budgets import HeadBudget
from hmc.artifact.model.ffn import NeuronBudget
from hmc.artifact.model.heads import HeadLayout
from hmc.artifact.model.latency import Sizes
from hmc.artifact.model.layers import RemovedLayers
from hmc.training.data.batches import BatchStream
from hmc.training.data.parallel_text import check_corpora, read_dev
from hmc.training.data.vocabulary import Vocabulary
from hmc.training.distillation.teacher import Distillation, load_teacher
from hmc.training.model.checkpoints import model_from_checkpoint
from hmc.training.model.evaluate import Scores, evaluate
from hmc.training.model.regimes import (
    freeze,
    gated_modules,
    mask_neurons,
    mask_to_layout,
    open_gates,
    remove_layers,
)
from hmc.training.pruning.closings import BudgetClosing, LatencyStage, MeasureChoice, StageClosing, kept_parts
from hmc.training.pruning.gate_sets import GateSet, HeadGates, LayerGates, NeuronGates, SubLayerGates
from hmc.training.pruning.inputs import Inputs, prune_corpus, request_text
from hmc.training.pruning.latency.choice import Choice
from hmc.training.pruning.latency.expected import ModelGates
from hmc.training.pruning.latency.goals import LatencyPlan
from hmc.training.pruning.results import cut_model, describe_kept, pruned_checkpoint, write_trajectory
from hmc.training.pruning.settings import PruneSettings
from hmc.training.pruning.stages import PruneProgress, Stage, as_budgets, plan_latency_stages, plan_stages
from hmc.training.runs.folder import REQUEST, check_pruning_folder, take_over
from hmc.training.runs.log import RunLog
from hmc.training.runs.processes import first_process_first, make_fabric, seed_process
from hmc.training.runs.state import load_state, progress_from, save_state
from hmc.training.runs.updater import Updater, make_optimizer


class PruningRun:
    """One pruning run; `run()` prunes."""

    def __init__(  # noqa: PLR0913, PLR0917 - one request, as users give it
        self,
        source: Path,
        targets: Sequence[int | HeadBudget],
        train: Sequence[str],
        dev: str,
        out: Path,
        settings: PruneSettings,
        neurons: Sequence[NeuronBudget] = (),
        nested_steps: int = 0,
        latency: LatencyPlan | None = None,
    ) -> None:
        """Prepares the run in the folder `out`, or loads its last state from there.

        source: converged checkpoint. targets: head budgets, largest first; a number counts heads in settings.scope.
        Leave them empty with settings.l0_lambda, or to prune neurons alone. train: training corpora. dev: dev corpus.
        neurons: one budget for all targets, or one for each. nested_steps: updates of the `nested_finetune` that will
        follow, which belong to the request. latency: latencies to reach, in place of all budgets.

        Raises InvalidRequestError, InvalidArtifactError or DeviceUnavailableError with what to do. The folder is
        written to only after all checks that need no tokenised text.
        """
        self.source, self.out = load_checkpoint(source), out
        self.settings = settings = settings.with_subwords_of(self.source.config.provenance)
        budgets = as_budgets(targets, settings)
        self.latency = latency
        if latency:
            self.stages = plan_latency_stages(latency, self.source, settings, [*budgets, *neurons])
        else:
            self.stages = plan_stages(budgets, self.source.layout, settings, neurons, self.source.ffn_widths.total)
        if nested_steps < 0:
            raise InvalidRequestError(f"--nested-steps {nested_steps}: give 0 (no nested fine-tuning) or more")
        config = self.source.config
        languages = (config.source_language, config.target_language)
        check_corpora(train, languages)
        self.dev = read_dev(dev, languages, settings.run.eval_sentences)
        check_pruning_folder(out, dict.fromkeys(stage.folder for stage in self.stages))
        request = {"source": str(source), "targets": [b.name for b in budgets], "train": list(train), "dev": dev}
        more: dict[str, Any] = {"nested_steps": nested_steps} | (
            {"neurons": list(map(str, neurons))} if neurons else {}
        )
        more |= {"latency": latency.request()} if latency else {}
        text = request_text(out, request | more, settings)
        self.vocabulary = Vocabulary(self.source.tokenizer)
        longest = min(settings.max_length, config.architecture.max_positions)
        teacher = load_teacher(settings.distill, source, config.architecture, self.vocabulary, longest)
        self.fabric = make_fabric(settings.run)
        with first_process_first(self.fabric):
            if text and self.fabric.is_global_zero:
                take_over(out, REQUEST, text)
            corpus = prune_corpus(self.source, train, settings, out / "cache")
        torch.manual_seed(settings.seed)
        self.model = model_from_checkpoint(self.source, dropout=settings.dropout)
        seed_process(self.fabric, settings.seed)
        weights = freeze(self.model, settings.freeze)
        self.gates: HeadGates | None = None
        self.neurons: NeuronGates | None = None
        self.layers = LayerGates(self.model, settings.initial_log_alpha) if latency else None
        if budgets or not neurons:
            kinds = budgets[0].kinds if budgets else settings.scope
            self.gates = HeadGates(self.model, self.source.layout, settings.initial_log_alpha, kinds)
        if neurons or latency:
            self.neurons = NeuronGates(self.model, settings.initial_log_alpha)
        self.sub_layers: SubLayerGates | None = None
        if latency and self.gates and self.neurons:
            self.sub_layers = SubLayerGates(self.gates, self.neurons, settings.initial_log_alpha)
        section = settings.train_section(sum(s.steps for s in self.stages))
        named: list[tuple[str, GateSet | None]] = [("gates", self.gates), ("neurons", self.neurons)]
        named += [("sub_layers", self.sub_layers), ("layers", self.layers)]
        optimizer = make_optimizer(
            [{"params": weights, "name": "weights"}]
            + [{"params": gates.parameters(), "name": name} for name, gates in named if gates],
            section,
        )
        self.stream = BatchStream(
            corpus, settings.batch_tokens, settings.seed, self.vocabulary.pad_id,
            self.fabric.global_rank, self.fabric.world_size, self.fabric.device,
            start_id=config.architecture.decoder_start,
        )  # fmt: skip
        self.updater = Updater(
            self.fabric, self.model, optimizer, iter(self.stream), section, compiled=settings.run.compile,
            distillation=Distillation(settings.distill, teacher),
        )  # fmt: skip
        self.progress = PruneProgress()
        self.inputs = Inputs(corpus, self.dev, checkpoint_digest(source), teacher.digest if teacher else "")
        self.inputs.note(self.progress)
        if (out / "state").is_dir():
            self._resume(out / "state")

    def run(self) -> list[Path]:
        """Runs, or resumes, every stage; returns the paths of the checkpoints in the order of the budgets."""
        progress, first = self.progress, self.fabric.is_global_zero
        total = sum(s.steps for s in self.stages)
        done = sum(s.steps for s in self.stages[: progress.stage]) + progress.step
        with RunLog("prune", self.out, total, done, active=first) as log:
            with first_process_first(self.fabric):
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
                # A recovery ends with an evaluation, which has shown that the weights can be used.
                if self.updater.tally.check() or stage.kind == "recover":
                    self._save()
        return [self.out / stage.folder for stage in self.stages if stage.kind == "recover"]

    # -- stages --------------------------------------------------------------------------------------------------

    def _close(self, stage: Stage, offset: int, log: RunLog) -> None:
        """Closes sampled gates down to the budgets, then fixes what stays."""
        progress, run = self.progress, self.settings.run
        closing = self._closing(stage)
        while progress.step < stage.steps:
            progress.step = step = progress.step + 1
            if closing.decided(step) and not closing.decided(step - 1):
                closing.decide(progress, log.say)
            rates = closing.rates(step)
            rates["weights"] = self.settings.warmed(rates["weights"], offset + step)
            self.updater.update(step, partial(closing.penalty, step), rates)
            closing.after(step)
            log.advance(offset + step)
            if step % run.log_every == 0 or step == stage.steps:
                scalars = self.updater.tally.line() | closing.scalars(step)
                log.report(offset + step, scalars)
                progress.trajectory.append({"stage": progress.stage, "step": step, **scalars})
            if step % run.save_every == 0 and self.updater.tally.check():
                closing.note(progress)
                self._save()
        closing.finish(progress, log.say)

    def _closing(self, stage: Stage) -> StageClosing:
        """Returns the closing of a stage, restored on resume."""
        if stage.goal is None:
            return BudgetClosing(stage, self.gates, self.neurons, self.settings, self.progress)
        assert self.latency
        assert self.gates
        assert self.neurons
        assert self.sub_layers
        assert self.layers
        gates = ModelGates(self.gates, self.neurons, self.sub_layers, self.layers)
        source = self.source
        whole = self.latency.table.ms(Sizes.of(source.layout, source.ffn_widths, source.removed_layers))
        return LatencyStage(
            gates, self.latency, stage.goal, whole, stage.steps, self.settings, self.progress, self._measuring(gates)
        )

    def _measuring(self, gates: ModelGates) -> MeasureChoice | None:
        """Returns what measures a choice of gates: the first process does, and tells the others."""
        if self.latency is None or self.latency.measure is None:
            return None
        measure = self.latency.measure

        def ms(choice: Choice) -> float:
            found = 0.0
            with first_process_first(self.fabric):
                if self.fabric.is_global_zero:
                    found = measure(cut_model(self.source, self.model, *kept_parts(gates, choice)))
            return float(self.fabric.broadcast(found))

        return ms

    def _recover(self, stage: Stage, offset: int, log: RunLog) -> None:
        """Trains the weights with the layout fixed, while the rate falls to zero; then writes the checkpoint."""
        progress, run = self.progress, self.settings.run
        if progress.layout:
            mask_to_layout(self.model, self.source.layout, HeadLayout.from_json(progress.layout))
        if progress.neurons:
            mask_neurons(self.model, progress.neurons)
        idle_layers: list[torch.nn.Parameter] = []
        if progress.removed_layers is not None:
            removed = RemovedLayers.model_validate(progress.removed_layers)
            remove_layers(self.model, removed)
            idle_layers = [p for s, n, layer in self.model.layers() if n in removed[s] for p in layer.parameters()]

        # Several processes wait for a gradient of every parameter, but masks give log α none, and removed layers
        # give their weights none.
        def zero() -> torch.Tensor:
            log_alpha = torch.cat([gates.log_alpha() for gates in self._gate_sets()])
            return 0.0 * torch.stack([log_alpha.sum(), *(p.sum() for p in idle_layers)]).sum()

        idle = zero if self.fabric.world_size > 1 else None
        while progress.step < stage.steps:
            progress.step = step = progress.step + 1
            rate = self.settings.warmed(self.settings.learning_rate * (1 - (step - 1) / stage.steps), offset + step)
            self.updater.update(
                step, idle, {"weights": rate, "gates": 0.0, "neurons": 0.0, "sub_layers": 0.0, "layers": 0.0}
            )
            log.advance(offset + step)
            if step % run.log_every == 0:
                log.report(offset + step, self.updater.tally.line() | {"rate": rate})
            if step % run.save_every == 0 and self.updater.tally.check():
                self._save()
        self.updater.tally.check()
        with first_process_first(self.fabric):  # no process leaves before the checkpoint is written
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
        self.progress.tally = self.updater.tally.state()
        # Masks have no parameters. The sampled gates return meanwhile, so that their log α are part of the state.
        former = [(module, module.gate) for module in gated_modules(self.model)]
        for gates in self._gate_sets():
            gates.sampled()
        save_state(self.out / "state", self.model, self.updater.optimizer, asdict(self.progress), self.fabric)
        for module, gate in former:
            module.gate = gate
        if self.fabric.is_global_zero:
            write_trajectory(self.out, self.progress.trajectory)

    def _gate_sets(self) -> list[GateSet]:
        return [gates for gates in (self.gates, self.neurons, self.sub_layers, self.layers) if gates]

    def _resume(self, state: Path) -> None:
        saved = load_state(state, self.model, self.updater.optimizer, self.fabric)
        self.progress = progress_from(PruneProgress, saved, state)
        self.inputs.check_same(self.progress, state)
        self.stream.epoch, self.stream.index = self.progress.epoch, self.progress.index
        self.updater.tally.restore(self.progress.tally)
