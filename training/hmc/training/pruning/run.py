"""Pruning runs: from a converged checkpoint to checkpoints with exactly N heads (Voita et al. 2019, section 6),
exactly N feed-forward neurons (Behnke & Heafield 2021), or both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import torch

from hmc.artifact.checkpoint.checkpoint import checkpoint_problems, save_checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.latency import Sizes
from hmc.artifact.model.layers import NONE_REMOVED
from hmc.artifact.stopping import deferred
from hmc.training.model.evaluate import Scores, evaluate
from hmc.training.model.regimes import (
    gated_modules,
    mask_neurons,
    open_gates,
    remove_layers,
    restoring_gates,
    select_layout,
)
from hmc.training.pruning.base import CheckpointRun
from hmc.training.pruning.control import train_control
from hmc.training.pruning.gate_sets import GateSet, HeadGates, LayerGates, NeuronGates, SubLayerGates
from hmc.training.pruning.latency.choice import Choice
from hmc.training.pruning.latency.expected import ModelGates
from hmc.training.pruning.latency.target import LatencyTarget, MeasureChoice, kept_parts
from hmc.training.pruning.nested import nested_finetune
from hmc.training.pruning.request import PruneRequest, check_request, plan_pruning
from hmc.training.pruning.results import cut_model, describe_kept, pruned_checkpoint, write_trajectory
from hmc.training.pruning.schedule import ClosingSchedule, ClosingTarget
from hmc.training.pruning.settings import PruneSettings
from hmc.training.pruning.stages import PruneProgress, Stage
from hmc.training.pruning.targets import HeadTarget, NeuronTarget
from hmc.training.runs.folder import working_in
from hmc.training.runs.log import RunLog
from hmc.training.runs.loop import Loop, Objective, Schedule
from hmc.training.runs.processes import first_process_first, naming_lost_processes
from hmc.training.runs.updater import Update


class PruningRun(CheckpointRun):
    """One pruning run; `run()` prunes."""

    def __init__(self, request: PruneRequest) -> None:
        """Prepares the run in its folder, or loads its last state from there.

        Raises InvalidRequestError, InvalidArtifactError or DeviceUnavailableError with what to do. The folder is
        written to only after all checks that need no tokenised text.
        """
        plan = plan_pruning(request)
        super().__init__(plan)
        settings = self.settings
        initial = settings.initial_log_alpha
        self.plan = plan
        self.stages = plan.stages
        self.latency = request.latency
        self.gates: HeadGates | None = None
        self.neurons: NeuronGates | None = None
        self.sets: list[GateSet] = []
        """All gates, in the order in which they are put on the model."""
        if plan.budgets or not request.neurons:
            kinds = plan.budgets[0].kinds if plan.budgets else settings.scope
            self.gates = HeadGates(self.model, self.source.layout, initial, kinds)
            self.sets.append(self.gates)
        if request.neurons or self.latency:
            self.neurons = NeuronGates(self.model, initial)
            self.sets.append(self.neurons)
        self.model_gates: ModelGates | None = None
        if self.latency and self.gates and self.neurons:
            sub_layers = SubLayerGates(self.gates, self.neurons, initial)
            layers = LayerGates(self.model, initial)
            self.model_gates = ModelGates(self.gates, self.neurons, sub_layers, layers)
            self.sets += [sub_layers, layers]
        groups = [{"params": self.weights, "name": "weights"}]
        groups += [{"params": gates.parameters(), "name": gates.group} for gates in self.sets]
        self.loop = Loop(
            self.fabric, self.model, groups, self.inputs, settings.train_section(plan.steps), settings.run,
            PruneProgress(), self.out / "state", distillation=self.distillation, saving=self._saving,
        )  # fmt: skip
        self.loop.resume()
        self.progress = self.loop.progress

    def run(self) -> list[Path]:
        """Runs, or resumes, every stage; returns the paths of the checkpoints in the order of the budgets."""
        self._check_written()
        progress = self.progress
        total = self.plan.steps
        done = self._steps_before(progress.stage) + progress.step
        with self.reporting("prune", total, done, self.inputs, self.settings.warmup_problems(total)) as log:
            with first_process_first(self.fabric, stops=True):
                if self.is_first and not progress.before:
                    open_gates(self.model)
                    progress.before = self._evaluate(log, "before").to_json()
            for number, stage in enumerate(self.stages):
                if number < progress.stage:
                    continue
                with deferred():  # until the last update of a closing stage is saved with what it closed
                    self._carry_out(stage, self._steps_before(number), log)
                    progress.stage = number + 1
                    progress.step = 0
                    # A recovery ends with an evaluation, which has shown that the weights can be used.
                    if self.loop.updater.tally.check() or stage.kind == "recover":
                        self.loop.save()
        return [self.out / stage.folder for stage in self.stages if stage.kind == "recover"]

    def _steps_before(self, number: int) -> int:
        return sum(stage.steps for stage in self.stages[:number])

    def _carry_out(self, stage: Stage, before: int, log: RunLog) -> None:
        """Makes the updates of a stage and ends it. before: updates of the run before it."""
        if stage.kind == "close":
            closing = ClosingSchedule(self._targets(stage), stage.steps, self.settings, self.progress, log.say, before)
            self.loop.run(closing, log, before)
            closing.finish()
        else:
            self._mask()
            recovery = _Recovery(stage.steps, self.settings, before, self.sets, self._idle())
            self.loop.run(recovery, log, before)
            self._finish(stage, log)

    def _check_written(self) -> None:
        """Raises InvalidRequestError where a checkpoint of a stage that is done is no longer there."""
        for stage in self.stages[: self.progress.stage]:
            path = self.out / stage.folder
            if stage.kind == "recover" and checkpoint_problems(path):
                raise InvalidRequestError(
                    f"{path}, which this run wrote, is missing or damaged; put it back, or choose another folder"
                )

    # -- closing -------------------------------------------------------------------------------------------------

    def _targets(self, stage: Stage) -> list[ClosingTarget]:
        """Returns what the gates of a closing stage close to, with the gates in the training regime."""
        settings = self.settings
        progress = self.progress
        for gates in self.sets:
            gates.sampled()
        if stage.goal and self.latency and self.model_gates:
            source = self.source
            whole = self.latency.table.ms(Sizes.from_layout(source.layout, source.ffn_widths, source.removed_layers))
            measure = self._measuring(self.model_gates)
            return [LatencyTarget(self.model_gates, self.latency, stage.goal, whole, progress, measure)]
        targets: list[ClosingTarget] = []
        if self.gates:
            targets.append(HeadTarget(self.gates, stage.budget, settings, progress.heads))
        if self.neurons and stage.neurons is not None:
            targets.append(NeuronTarget(self.neurons, stage.neurons, settings, progress.neurons))
        return targets

    def _measuring(self, gates: ModelGates) -> MeasureChoice | None:
        """Returns what measures a choice of gates: the first process does, and tells the others."""
        if self.latency is None or self.latency.measure is None:
            return None
        measure = self.latency.measure

        def ms(choice: Choice) -> float:
            latency = 0.0
            with first_process_first(self.fabric, stops=True):
                if self.is_first:
                    latency = measure(cut_model(self.source, self.model, *kept_parts(gates, choice)))
            return float(self.fabric.broadcast(latency))

        return ms

    # -- recovery ------------------------------------------------------------------------------------------------

    def _mask(self) -> None:
        """Fixes what the last closing stage left."""
        progress = self.progress
        if progress.heads:
            select_layout(self.model, self.source.layout, progress.heads)
        if progress.neurons:
            mask_neurons(self.model, progress.neurons)
        if progress.removed is not None:
            remove_layers(self.model, progress.removed)

    def _idle(self) -> Callable[[], torch.Tensor] | None:
        """Returns a penalty of 0 for the parameters to which no other gradient goes.

        Several processes wait for a gradient of every parameter, but masks give log α none, and removed layers give
        their weights none.
        """
        if self.fabric.world_size == 1:
            return None
        removed = self.progress.removed or NONE_REMOVED
        idle = list(chain.from_iterable(gates.parameters() for gates in self.sets))
        for stack, number, layer in self.model.layers():
            if number in removed[stack]:
                idle += layer.parameters()

        def zero() -> torch.Tensor:
            return 0.0 * torch.stack([parameter.sum() for parameter in idle]).sum()

        return zero

    def _finish(self, stage: Stage, log: RunLog) -> None:
        """Evaluates the model and writes the checkpoint of the stage."""
        self.loop.updater.tally.check()
        with first_process_first(self.fabric, stops=True):  # no process leaves before the checkpoint is written
            if self.is_first:
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
        with restoring_gates(gated_modules(self.model)):
            for gates in self.sets:
                gates.sampled()
            yield
        if self.is_first:
            write_trajectory(self.out, self.progress.trajectory)


class _Recovery(Schedule):
    """Trains the weights with the layout fixed, while the rate falls to zero."""

    saves_last = True

    def __init__(
        self, steps: int, settings: PruneSettings, before: int, sets: Sequence[GateSet],
        idle: Callable[[], torch.Tensor] | None,
    ) -> None:  # fmt: skip
        self.steps = steps
        self._still = dict.fromkeys((gates.group for gates in sets), 0.0)
        self._settings = settings
        self._before = before
        self._idle = idle

    def _rate(self, step: int) -> float:
        rate = self._settings.learning_rate * (1 - (step - 1) / self.steps)
        return self._settings.warmed(rate, self._before + step)

    def objective(self, step: int) -> Objective:
        """Returns learning rates that move no gate."""
        return Objective(self._idle, {"weights": self._rate(step), **self._still})

    def scalars(self, step: int, update: Update) -> dict[str, float]:  # noqa: ARG002 - see Schedule
        """Returns the learning rate."""
        return {"rate": self._rate(step)}


@naming_lost_processes()
def prune(request: PruneRequest) -> list[Path]:
    """Runs or resumes a request. Returns the paths of the checkpoints; the checkpoint of nested fine-tuning comes after
    those of the stages, and that of the control last.

    Raises InvalidRequestError, InvalidArtifactError or DeviceUnavailableError with what to do; Stopped after SIGTERM or
    Ctrl-C, when the state is saved.
    """
    check_request(request.settings, request.neurons, request.nested_steps)
    with working_in(request.out):
        steps = request.nested_steps
        written: list[Path] = []
        if request.settings.nested.heads == "checkpoints":
            run = PruningRun(request)
            steps += run.plan.steps
            written = run.run()
        if request.nested_steps:
            written.append(nested_finetune(request, written))
        if request.control:
            written.append(train_control(request, steps))
    return written
