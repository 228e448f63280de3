"""Pruning runs: from a converged checkpoint to checkpoints with exactly N heads (Voita et al. 2019, section 6),
exactly N feed-forward neurons (Behnke & Heafield 2021), or both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hmc.artifact.checkpoint.checkpoint import (
    Checkpoint,
    checkpoint_digest,
    checkpoint_problems,
    load_checkpoint,
    save_checkpoint,
)
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.budgets import HeadBudget
from hmc.artifact.model.ffn import NeuronBudget
from hmc.artifact.model.heads import HeadLayout
from hmc.artifact.model.latency import Sizes
from hmc.artifact.model.layers import RemovedLayers
from hmc.artifact.stopping import deferred
from hmc.training.data.corpus import count_pairs
from hmc.training.data.parallel_text import DevText, check_corpora, read_dev
from hmc.training.data.vocabulary import Vocabulary
from hmc.training.distillation.teacher import Distillation, load_teacher
from hmc.training.model.checkpoints import model_from_checkpoint
from hmc.training.model.evaluate import Scores, evaluate
from hmc.training.model.regimes import (
    freeze,
    gated_modules,
    mask_neurons,
    open_gates,
    remove_layers,
    select_layout,
)
from hmc.training.pruning.control import train_control
from hmc.training.pruning.gate_sets import GateSet, HeadGates, LayerGates, NeuronGates, SubLayerGates
from hmc.training.pruning.latency.choice import Choice
from hmc.training.pruning.latency.expected import ModelGates
from hmc.training.pruning.latency.target import GROUPS, LatencyTarget, MeasureChoice, kept_parts
from hmc.training.pruning.nested import nested_finetune
from hmc.training.pruning.request import check_request, length_limit, prune_corpus, request_text
from hmc.training.pruning.results import cut_model, describe_kept, pruned_checkpoint, write_trajectory
from hmc.training.pruning.schedule import ClosingSchedule, ClosingTarget
from hmc.training.pruning.settings import PruneSettings
from hmc.training.pruning.stages import LatencyPlan, PruneProgress, Stage, as_budgets, plan_latency_stages, plan_stages
from hmc.training.pruning.targets import HeadTarget, NeuronTarget
from hmc.training.runs.folder import REQUEST, STATES, check_pruning_folder, hold, take_over, working_in
from hmc.training.runs.log import RunLog
from hmc.training.runs.loop import Loop, Objective, Schedule
from hmc.training.runs.processes import first_process_first, make_fabric, naming_lost_processes, seed_process
from hmc.training.runs.state import Inputs
from hmc.training.runs.updater import Update


class Checked(NamedTuple):
    """A request after the checks that need no work."""

    source: Checkpoint
    settings: PruneSettings
    budgets: list[HeadBudget]
    stages: list[Stage]
    dev: DevText
    text: str | None
    """See `request_text`."""


def check_pruning(
    source: Path, targets: Sequence[int | HeadBudget], train: Sequence[str], dev: str, out: Path,
    settings: PruneSettings, neurons: Sequence[NeuronBudget] = (), nested_steps: int = 0,
    latency: LatencyPlan | None = None,
) -> Checked:  # fmt: skip
    """Checks a request. It has the arguments of `PruningRun`. Writes nothing.

    Raises InvalidRequestError or InvalidArtifactError with what to do.
    """
    checkpoint = load_checkpoint(source)
    settings = settings.following(checkpoint.config.provenance)
    budgets = as_budgets(targets, settings)
    if latency:
        stages = plan_latency_stages(latency, checkpoint, settings, [*budgets, *neurons])
    else:
        stages = plan_stages(budgets, checkpoint.layout, settings, neurons, checkpoint.ffn_widths.total)
    if nested_steps < 0:
        raise InvalidRequestError(f"--nested-steps {nested_steps}: give 0 (no nested fine-tuning) or more")
    languages = (checkpoint.config.source_language, checkpoint.config.target_language)
    check_corpora(train, languages)
    pairs = read_dev(dev, languages, settings.run.eval_sentences)
    check_pruning_folder(out, dict.fromkeys(stage.folder for stage in stages))
    request = {"source": str(source), "targets": [b.name for b in budgets], "train": list(train), "dev": dev}
    more: dict[str, Any] = {"nested_steps": nested_steps} | ({"neurons": list(map(str, neurons))} if neurons else {})
    more |= {"latency": latency.request()} if latency else {}
    return Checked(checkpoint, settings, budgets, stages, pairs, request_text(out, request | more, settings))


def plan_pruning(
    source: Path, targets: Sequence[int | HeadBudget], train: Sequence[str], dev: str, out: Path,
    settings: PruneSettings, neurons: Sequence[NeuronBudget] = (), nested_steps: int = 0, *, control: bool = False,
) -> dict[str, str]:  # fmt: skip
    """Describes in words what `prune` would do with the same arguments. Reads the texts to their end, but those on the
    hub.

    Raises as `check_pruning`.
    """
    found = check_pruning(source, targets, train, dev, out, settings, neurons, nested_steps)
    config = found.source.config
    stages = found.stages if settings.nested.heads == "checkpoints" else []
    made = {stage.folder: [each for each in stages if each.folder == stage.folder] for stage in stages}
    begun = any((out / name).is_dir() for name in STATES)
    updates = sum(stage.steps for stage in stages) + nested_steps
    languages = (config.source_language, config.target_language)
    limit = length_limit(found.source, settings)
    vocabulary = Vocabulary(found.source.tokenizer)
    counts = count_pairs(train, languages, vocabulary, limit.tokens)
    warnings = [*counts.warnings(limit), *found.dev.warnings(vocabulary, config.architecture.max_positions)]
    for steps in (sum(stage.steps for stage in stages), nested_steps):
        warnings += settings.warmup_problems(steps) if steps else []
    return {
        "model": f"{source}: {found.source.layout.total} heads, {found.source.ffn_widths.total:,} feed-forward neurons",
        "text": f"{', '.join(train)} ({' to '.join(languages)}): {counts.summary(limit)}",
        "dev text": f"{dev}: {found.dev.summary()}",
        **{str(out / name): ", ".join(f"{s.kind}, {s.steps:,} updates" for s in parts) for name, parts in made.items()},
        **({"nested": f"{nested_steps:,} updates"} if nested_steps else {}),
        **({"control": f"all heads, {updates:,} updates"} if control else {}),
        "updates": f"of {settings.batch_tokens * settings.accumulate:,} tokens, by {settings.optimizer}",
        "folder": f"{out}: {'a run that goes on' if begun else 'a new run'}",
        **({"warning": "; ".join(warnings)} if warnings else {}),
    }


class PruningRun:
    """One pruning run; `run()` prunes."""

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
        checked = check_pruning(source, targets, train, dev, out, settings, neurons, nested_steps, latency)
        self.source, self.settings, budgets, self.stages, self.dev, text = checked
        self.out = out
        self.latency = latency
        settings = self.settings
        config = self.source.config
        self.vocabulary = Vocabulary(self.source.tokenizer)
        longest = length_limit(self.source, settings).tokens
        teacher = load_teacher(settings.distill, source, config.architecture, self.vocabulary, longest)
        self.fabric = make_fabric(settings.run)
        with first_process_first(self.fabric, stops=True):
            if self.fabric.is_global_zero:
                hold(out)
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
        named: list[tuple[str, GateSet | None]] = [("gates", self.gates), ("neurons", self.neurons)]
        named += [("sub_layers", self.sub_layers), ("layers", self.layers)]
        groups = [{"params": gates.parameters(), "name": name} for name, gates in named if gates]
        inputs = Inputs(corpus, self.dev, checkpoint_digest(source), teacher.digest if teacher else "")
        self.loop = Loop(
            self.fabric, self.model, [{"params": weights, "name": "weights"}, *groups], inputs,
            settings.train_section(sum(s.steps for s in self.stages)), settings.run, PruneProgress(), out / "state",
            distillation=Distillation(settings.distill, teacher), saving=self._saving,
        )  # fmt: skip
        self.loop.resume()
        self.progress = self.loop.progress

    def run(self) -> list[Path]:
        """Runs, or resumes, every stage; returns the paths of the checkpoints in the order of the budgets."""
        self._check_written()
        progress = self.progress
        first = self.fabric.is_global_zero
        total = sum(s.steps for s in self.stages)
        done = sum(s.steps for s in self.stages[: progress.stage]) + progress.step
        with RunLog("prune", self.out, total, done, active=first) as log:
            limit = length_limit(self.source, self.settings)
            log.say_texts(self.loop.inputs, limit, self.vocabulary, self.source.architecture.max_positions)
            log.say_warnings(self.settings.warmup_problems(total))
            with first_process_first(self.fabric, stops=True):
                if first and not progress.before:
                    open_gates(self.model)
                    progress.before = self._evaluate(log, "before").to_json()
            for number, stage in enumerate(self.stages):
                if number < progress.stage:
                    continue
                offset = sum(s.steps for s in self.stages[:number])
                with deferred():  # until the last update of a closing stage is saved with what it closed
                    self._carry_out(stage, offset, log)
                    progress.stage = number + 1
                    progress.step = 0
                    # A recovery ends with an evaluation, which has shown that the weights can be used.
                    if self.loop.updater.tally.check() or stage.kind == "recover":
                        self.loop.save()
        return [self.out / stage.folder for stage in self.stages if stage.kind == "recover"]

    def _carry_out(self, stage: Stage, before: int, log: RunLog) -> None:
        """Makes the updates of a stage and ends it. before: updates of the run before it."""
        if stage.kind == "close":
            closing = ClosingSchedule(self._targets(stage), stage.steps, self.settings, self.progress, log.say, before)
            self.loop.run(closing, log, before)
            closing.finish()
        else:
            self._mask()
            self.loop.run(_Recovery(stage.steps, self.settings, before, self._idle()), log, before)
            self._finish(stage, log)

    def _check_written(self) -> None:
        """Raises InvalidRequestError where a checkpoint of a stage that is done is no longer there."""
        for stage in self.stages[: self.progress.stage]:
            path = self.out / stage.folder
            if stage.kind == "recover" and checkpoint_problems(path):
                raise InvalidRequestError(
                    f"{path}, which this run wrote, is missing or damaged; put it back, or choose another --out"
                )

    # -- closing -------------------------------------------------------------------------------------------------

    def _targets(self, stage: Stage) -> list[ClosingTarget]:
        """Returns what the gates of a closing stage close to, with the gates in the training regime."""
        settings = self.settings
        progress = self.progress
        for gates in self._gate_sets():
            gates.sampled()
        if stage.goal is None:
            found: list[ClosingTarget] = []
            if self.gates:
                within = HeadLayout.from_json(progress.layout) if progress.layout else None
                found.append(HeadTarget(self.gates, stage.budget, settings, within))
            if self.neurons and stage.neurons is not None:
                found.append(NeuronTarget(self.neurons, stage.neurons, settings, progress.neurons))
            return found
        assert self.latency
        assert self.gates
        assert self.neurons
        assert self.sub_layers
        assert self.layers
        every = ModelGates(self.gates, self.neurons, self.sub_layers, self.layers)
        source = self.source
        whole = self.latency.table.ms(Sizes.of(source.layout, source.ffn_widths, source.removed_layers))
        return [LatencyTarget(every, self.latency, stage.goal, whole, progress, self._measuring(every))]

    def _measuring(self, gates: ModelGates) -> MeasureChoice | None:
        """Returns what measures a choice of gates: the first process does, and tells the others."""
        if self.latency is None or self.latency.measure is None:
            return None
        measure = self.latency.measure

        def ms(choice: Choice) -> float:
            found = 0.0
            with first_process_first(self.fabric, stops=True):
                if self.fabric.is_global_zero:
                    found = measure(cut_model(self.source, self.model, *kept_parts(gates, choice)))
            return float(self.fabric.broadcast(found))

        return ms

    # -- recovery ------------------------------------------------------------------------------------------------

    def _mask(self) -> None:
        """Fixes what the last closing stage left."""
        progress = self.progress
        if progress.layout:
            select_layout(self.model, self.source.layout, HeadLayout.from_json(progress.layout))
        if progress.neurons:
            mask_neurons(self.model, progress.neurons)
        if progress.removed_layers is not None:
            remove_layers(self.model, RemovedLayers.model_validate(progress.removed_layers))

    def _idle(self) -> Callable[[], torch.Tensor] | None:
        """Returns a penalty of 0 for the parameters to which no other gradient goes.

        Several processes wait for a gradient of every parameter, but masks give log α none, and removed layers give
        their weights none.
        """
        if self.fabric.world_size == 1:
            return None
        removed = RemovedLayers.model_validate(self.progress.removed_layers or {})
        idle_layers = [p for s, n, layer in self.model.layers() if n in removed[s] for p in layer.parameters()]

        def zero() -> torch.Tensor:
            log_alpha = torch.cat([gates.log_alpha() for gates in self._gate_sets()])
            return 0.0 * torch.stack([log_alpha.sum(), *(p.sum() for p in idle_layers)]).sum()

        return zero

    def _finish(self, stage: Stage, log: RunLog) -> None:
        """Evaluates the model and writes the checkpoint of the stage."""
        self.loop.updater.tally.check()
        with first_process_first(self.fabric, stops=True):  # no process leaves before the checkpoint is written
            if self.fabric.is_global_zero:
                after = self._evaluate(log, f"after, {describe_kept(self.progress)}")
                gates = (self.gates, self.neurons)
                pruned = pruned_checkpoint(self.source, self.model, gates, self.progress, self.settings, after)
                save_checkpoint(pruned, self.out / stage.folder)
                log.detail(f"wrote {self.out / stage.folder}")

    # -- parts ---------------------------------------------------------------------------------------------------

    def _evaluate(self, log: RunLog, what: str) -> Scores:
        scores = evaluate(self.model, self.vocabulary, self.dev.pairs, beam=4)
        log.say(f"{what}: dev BLEU {scores.bleu:.2f} (beam 4, {scores.sentences} sentences)")
        return scores

    @contextmanager
    def _saving(self) -> Iterator[None]:
        """Puts the sampled gates back meanwhile, so that their log α are part of the state: masks have no parameters.
        The trajectory is written with every state."""
        former = [(module, module.gate) for module in gated_modules(self.model)]
        for gates in self._gate_sets():
            gates.sampled()
        yield
        for module, gate in former:
            module.gate = gate
        if self.fabric.is_global_zero:
            write_trajectory(self.out, self.progress.trajectory)

    def _gate_sets(self) -> list[GateSet]:
        return [gates for gates in (self.gates, self.neurons, self.sub_layers, self.layers) if gates]


class _Recovery(Schedule):
    """Trains the weights with the layout fixed, while the rate falls to zero."""

    saves_last = True

    def __init__(
        self, steps: int, settings: PruneSettings, before: int, idle: Callable[[], torch.Tensor] | None
    ) -> None:
        self.steps = steps
        self._settings = settings
        self._before = before
        self._idle = idle

    def _rate(self, step: int) -> float:
        rate = self._settings.learning_rate * (1 - (step - 1) / self.steps)
        return self._settings.warmed(rate, self._before + step)

    def objective(self, step: int) -> Objective:
        """Returns learning rates that move no gate."""
        return Objective(self._idle, {"weights": self._rate(step), **dict.fromkeys(GROUPS, 0.0)})

    def scalars(self, step: int, update: Update) -> dict[str, float]:  # noqa: ARG002 - see Schedule
        """Returns the learning rate."""
        return {"rate": self._rate(step)}


@naming_lost_processes()
def prune(
    source: Path, targets: Sequence[HeadBudget], train: Sequence[str], dev: str, out: Path, settings: PruneSettings,
    neurons: Sequence[NeuronBudget] = (), nested_steps: int = 0, *, control: bool = False,
) -> list[Path]:  # fmt: skip
    """Runs or resumes a request. Returns the paths of the checkpoints; the checkpoint of nested fine-tuning comes last.

    The arguments are those of `PruningRun`. With `settings.nested.heads` other than `checkpoints`, nested fine-tuning
    ranks the heads itself and no gates are closed. control: also train all heads for as many updates as the last
    checkpoint had; a run that has ended may get it later. Its checkpoint comes last.

    Raises InvalidRequestError, InvalidArtifactError or DeviceUnavailableError with what to do; Stopped after SIGTERM or
    Ctrl-C, when the state is saved.
    """
    check_request(settings, neurons, nested_steps)
    with working_in(out):
        steps = nested_steps
        if settings.nested.heads != "checkpoints":
            written = [nested_finetune(source, [], train, dev, out, settings, nested_steps, targets)]
        else:
            run = PruningRun(source, targets, train, dev, out, settings, neurons, nested_steps)
            steps += sum(stage.steps for stage in run.stages)
            written = run.run()
            if nested_steps:
                written.append(nested_finetune(source, written, train, dev, out, settings, nested_steps))
        if control:
            written.append(train_control(source, train, dev, out, settings, steps))
    return written
