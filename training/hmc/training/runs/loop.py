"""The loop of every run: updates one after another, logged, evaluated and saved. A run that was interrupted resumes
exactly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from lightning_fabric import Fabric
from torch import Tensor

from hmc.artifact.stopping import Stopped, deferred
from hmc.training.data.batches import BatchStream
from hmc.training.distillation.teacher import NOTHING, Distillation
from hmc.training.model.transformer import Transformer
from hmc.training.runs.log import RunLog
from hmc.training.runs.optimizer import make_optimizer
from hmc.training.runs.processes import first_process_first, noted_anywhere
from hmc.training.runs.recipe import RunSection, TrainSection
from hmc.training.runs.state import Inputs, RunProgress, load_state, progress_from, save_state
from hmc.training.runs.updater import Masking, Masks, Update, Updater

Kind = TypeVar("Kind", bound=RunProgress)


class Objective(NamedTuple):
    """The parts of an update beside the loss of its batches; see `Updater.update`."""

    penalty: Callable[[], Tensor] | None = None
    rates: dict[str, float] | None = None
    passes: Sequence[Masks] = ()


class Schedule:
    """The objectives of the updates of a run, or of one of its stages. Steps count from 1."""

    steps: int
    """Updates of the schedule."""
    evaluates = False
    """Whether `evaluate` is called as `eval_every` says and after the last update, which is then saved too."""
    logs_last = False
    """Whether the last update is logged whatever its number."""
    saves_last = False
    """Whether a state is saved after the last update whatever its number: much work follows that is done again."""

    def saves_before(self, step: int) -> bool:  # noqa: ARG002 - for those that work long
        """Whether a state is saved before update `step`: `objective` works long then, and signals may end it."""
        return False

    def objective(self, step: int) -> Objective:  # noqa: ARG002 - for those that ask for something
        """Is called before an update; returns its objective."""
        return Objective()

    def after(self, step: int, update: Update) -> None:
        """Is called after an update. It must not make a GPU wait."""

    def scalars(self, step: int, update: Update) -> dict[str, float]:  # noqa: ARG002 - for those that log something
        """Returns the numbers to log beside the loss."""
        return {}

    def logged(self, step: int, scalars: dict[str, float]) -> None:
        """Is called with every line of the log."""

    def note(self) -> None:
        """Is called before a state is saved. Writes the data for a resumed run into the progress."""

    def evaluate(self, log: RunLog, *, due: bool) -> None:
        """Scores the model on dev and writes a checkpoint. Is called in the first process.

        due: whether `eval_every` asks for it. Otherwise it is done only because the update is the last one.
        """

    def has_ended(self) -> bool:
        """Whether no update follows, though some of `steps` are left. The first process decides, after `evaluate`."""
        return False


class Loop(Generic[Kind]):
    """Makes the updates of a run; holds the model, its optimiser and batches, and how far the run has come."""

    def __init__(
        self, fabric: Fabric, model: Transformer, groups: list[dict[str, Any]], inputs: Inputs, settings: TrainSection,
        run: RunSection, progress: Kind, state: Path, *, masking: Masking | None = None,
        distillation: Distillation = NOTHING, saving: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:  # fmt: skip
        """groups: parameters, as `make_optimizer` takes them. progress: that of a run that begins. state: folder of
        the saved state. saving: a context in which the model has all parameters that a state holds.
        """
        self.fabric = fabric
        self.model = model
        self.inputs = inputs
        self.run_section = run
        self.progress = progress
        self.state = state
        self._saving = saving
        self._ended = False
        self.stream = BatchStream(
            inputs.corpus, settings.batch_tokens, settings.seed, model.arch.pad_id,
            fabric.global_rank, fabric.world_size, fabric.device, start_id=model.arch.decoder_start,
        )  # fmt: skip
        self.updater = Updater(
            fabric, model, make_optimizer(groups, settings, model), iter(self.stream), settings, masking,
            compiled=run.compile, distillation=distillation,
        )  # fmt: skip
        inputs.note(progress)

    def resume(self, check: Callable[[Kind], None] = lambda _: None) -> None:
        """Loads the saved state, if there is one. Then it drops the tokens of other texts: the run has been accepted.

        check: raises an error if the state belongs to another run. Raises InvalidArtifactError for a damaged state,
        InvalidRequestError for one of other inputs.
        """
        if self.state.is_dir():
            self._load(check)
        if self.fabric.is_global_zero:
            self.inputs.corpus.drop_others()

    def _load(self, check: Callable[[Kind], None]) -> None:
        saved = load_state(self.state, self.model, self.updater.optimizer, self.fabric)
        progress = progress_from(type(self.progress), saved, self.state)
        self.inputs.check_same(progress, self.state)
        check(progress)
        self.progress = progress
        self.stream.epoch = progress.epoch
        self.stream.index = progress.index
        self.updater.tally.restore(progress.tally)

    def run(self, schedule: Schedule, log: RunLog, before: int = 0) -> None:
        """Makes the updates of a schedule that are not done yet. before: updates of the run before the schedule.

        SIGTERM or Ctrl-C in any process ends all processes after an update, whose state is saved. It then raises
        Stopped with a message.
        """
        self.model.train()
        self._ended = schedule.has_ended()  # every process has read the same state
        with deferred():
            while self.progress.step < schedule.steps and not self._ended:
                if schedule.saves_before(self.progress.step + 1) and self.updater.tally.check():
                    schedule.note()
                    self.save()
                saved = self._advance(schedule, log, before)
                signal = noted_anywhere(self.fabric)
                if signal and not saved and self.updater.tally.check():  # else the next update is saved
                    schedule.note()
                    self.save()
                    saved = True
                if signal and saved:
                    done = before + self.progress.step
                    raise Stopped(
                        signal, f"update {done:,} is saved in {self.state}; the same command goes on from there"
                    )

    def _advance(self, schedule: Schedule, log: RunLog, before: int) -> bool:
        """Makes one update, with what is due after it. Returns whether its state was saved."""
        progress = self.progress
        run = self.run_section
        tally = self.updater.tally
        progress.step = step = progress.step + 1
        epochs = self._epochs()
        update = self.updater.update(step, *schedule.objective(step))
        schedule.after(step, update)
        log.advance(before + step)
        last = step == schedule.steps
        if step % run.log_every == 0 or (last and schedule.logs_last):
            scalars = tally.line() | schedule.scalars(step, update)
            log.report(before + step, scalars)
            schedule.logged(step, scalars)
        due = self._epochs() > epochs if run.eval_every == "epoch" else step % run.eval_every == 0
        evaluates = schedule.evaluates and (due or last)
        if evaluates:
            tally.check()
            with first_process_first(self.fabric):
                if self.fabric.is_global_zero:
                    schedule.evaluate(log, due=due)
            self._ended = bool(self.fabric.broadcast(schedule.has_ended()))
            last = last or self._ended
        # The evaluation has shown that the last weights can be used, even if the last update was skipped.
        saves = step % run.save_every == 0 or (last and schedule.saves_last)
        if (saves and tally.check()) or (evaluates and last):
            schedule.note()
            self.save()
            return True
        return False

    def _epochs(self) -> int:
        """Passes over the training text that are complete. Only counted where evaluations follow them."""
        return self.stream.epochs if self.run_section.eval_every == "epoch" else 0

    def save(self) -> None:
        """Saves the state of the run. All processes must call it."""
        self.progress.epoch = self.stream.epoch
        self.progress.index = self.stream.index
        self.progress.tally = self.updater.tally.state()
        with self._saving():
            save_state(self.state, self.model, self.updater.optimizer, asdict(self.progress), self.fabric)
