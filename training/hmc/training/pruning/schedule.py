"""The schedule of a closing stage: sampled gates under pressure in every update, until what stays is settled.

It has four phases. The budget falls; then it stays, and gates settle; then gates are pressed to decide; at last the
decision is fixed, by rank for gates that have not decided, and every log α moves to its end while the weights follow.
What gates close to is a `ClosingTarget`: numbers of heads or neurons, a λ, or a latency.

The λ form (`l0_lambda`) is the objective of Voita et al. 2019, L_xent + λ · L_C, and nothing more: gates that do not
settle by themselves stay unsettled. With `settle_gates` it gets the last two phases too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain

import torch
from torch import Tensor

from hmc.training.pruning.gate_sets import GateSet
from hmc.training.pruning.settings import PruneSettings
from hmc.training.pruning.stages import PruneProgress
from hmc.training.runs.loop import Objective, Schedule
from hmc.training.runs.updater import Update

BUDGET_FALLS = 0.6
"""Share of the updates over which the budget falls to its target."""
PRESS_FROM = 0.7
PRESS_WEIGHT = 3.0
"""Share of the updates after which gates are pressed to decide, and the weight that this penalty grows to."""
DECIDED_FROM = 0.85
"""Share of the updates after which no gate changes sides."""
TRAVEL = 12.0
"""Distance that log α may have to move while the budget falls; it sets the smallest learning rate of the gates."""
Say = Callable[[str], None]


class ClosingTarget(ABC):
    """A target to which a closing stage closes gates. `fallen`: share of the way from the start that the budget has
    fallen.

    Neither `pressure`, `ascend` nor `keep` makes a GPU wait.
    """

    sets: Sequence[GateSet]
    measures = False
    """Whether `decide` measures models, which takes minutes."""

    @abstractmethod
    def begin(self) -> None:
        """Notes the expected units that the gates keep now. The budget falls from this number."""

    @abstractmethod
    def restore(self, progress: PruneProgress) -> None:
        """Continues from what `note` wrote."""

    @abstractmethod
    def note(self, progress: PruneProgress) -> None:
        """Writes its state into `progress`, for a resumed run."""

    @abstractmethod
    def pressure(self, fallen: float) -> Tensor:
        """Returns the term that drives the gates to the budget, in nats per token (scalar)."""

    @abstractmethod
    def ascend(self, fallen: float) -> None:
        """Raises the multipliers of the pressure after an update."""

    @abstractmethod
    def keep(self) -> list[Tensor]:
        """Returns `[total]` booleans for every set: the gates that stay by the decision, or that would stay if it were
        made now."""

    @abstractmethod
    def decide(self, progress: PruneProgress, say: Say) -> None:
        """Is called before the decision is fixed; notes which gates it forces."""

    @abstractmethod
    def scalars(self, fallen: float) -> dict[str, float]:
        """Returns numbers to log: the budget, the expected units that stay, and the gates that have not settled."""

    @abstractmethod
    def finish(self, progress: PruneProgress, say: Say) -> None:
        """Writes the units that stay into `progress`, and prints them."""


class ClosingSchedule(Schedule):
    """One closing stage, of all gates of its targets."""

    logs_last = True

    def __init__(
        self,
        targets: Sequence[ClosingTarget],
        steps: int,
        settings: PruneSettings,
        progress: PruneProgress | None = None,
        say: Say = lambda _: None,
        before: int = 0,
    ) -> None:
        """steps: updates of the stage. progress: a stage that was interrupted goes on from there. say: prints a line.
        before: updates of the run before the stage, for the warm-up."""
        self.targets = targets
        self.steps = steps
        self.settings = settings
        self._say = say
        self._before = before
        self.progress = progress or PruneProgress()
        self.settles = settings.l0_lambda is None or settings.settle_gates
        self.sets = list(chain.from_iterable(target.sets for target in targets))
        for target in targets:
            target.begin()
            if self.progress.step:
                target.restore(self.progress)

    def decided(self, step: int) -> bool:
        """True in the last phase, when no gate changes sides any more."""
        return self.settles and step > DECIDED_FROM * self.steps

    def fallen(self, step: int) -> float:
        """Returns the share of its way that the budget has fallen at update `step`."""
        return min(1.0, step / self.steps / BUDGET_FALLS)

    def rates(self, step: int) -> dict[str, float]:
        """Returns the learning rates of parameter groups at update `step`."""
        least = TRAVEL / (BUDGET_FALLS * self.steps)
        rate = 0.0 if self.decided(step) else max(self.settings.gate_rate, least)
        weights = self.settings.warmed(self.settings.learning_rate, self._before + step)
        return {"weights": weights, **dict.fromkeys((gates.group for gates in self.sets), rate)}

    def penalty(self, step: int) -> Tensor:
        """Returns the term to add to a loss in nats per token at update `step` (scalar)."""
        terms = [target.pressure(self.fallen(step)) for target in self.targets]
        ramp = (step / self.steps - PRESS_FROM) / (DECIDED_FROM - PRESS_FROM)
        if self.settles and ramp > 0 and not self.decided(step):
            terms += [PRESS_WEIGHT * ramp * gates.decision_penalty(keep) for gates, keep in self._kept()]
        return torch.stack(terms).sum()

    def saves_before(self, step: int) -> bool:
        """Whether a state is saved before the targets decide, because they measure models then."""
        decides = self.decided(step) and not self.decided(step - 1)
        return decides and any(target.measures for target in self.targets)

    def end_update(self, step: int) -> None:
        """Ends update `step`: raises the multipliers, and in the last phase moves every log α towards its end."""
        for target in self.targets:
            target.ascend(self.fallen(step))
        for gates in self.sets:
            gates.hold()
        if self.decided(step):
            for gates, keep in self._kept():
                gates.move(keep, self.steps - step + 1)

    def _kept(self) -> list[tuple[GateSet, Tensor]]:
        kept = chain.from_iterable(target.keep() for target in self.targets)
        return list(zip(self.sets, kept, strict=True))

    # -- in the loop ---------------------------------------------------------------------------------------------

    def objective(self, step: int) -> Objective:
        """Draws the gates of the update; returns penalty and rates. Before the first update of the last phase the
        targets decide."""
        for number, gates in enumerate(self.sets):
            gates.draw(self.settings.seed, self._before + step, number)
        if self.decided(step) and not self.decided(step - 1):
            for target in self.targets:
                target.decide(self.progress, self._say)
        return Objective(partial(self.penalty, step), self.rates(step))

    def after(self, step: int, update: Update) -> None:  # noqa: ARG002 - see Schedule
        """See `end_update`."""
        self.end_update(step)

    def scalars(self, step: int, update: Update | None = None) -> dict[str, float]:  # noqa: ARG002 - see Schedule
        """Returns the numbers of all targets."""
        scalars: dict[str, float] = {}
        for target in self.targets:
            scalars |= target.scalars(self.fallen(step))
        return scalars

    def logged(self, step: int, scalars: dict[str, float]) -> None:
        """Adds a point to the trajectory of the gates."""
        self.progress.trajectory.append({"stage": self.progress.stage, "step": step, **scalars})

    def note(self) -> None:
        """Notes the state of the targets."""
        for target in self.targets:
            target.note(self.progress)

    def finish(self) -> None:
        """Ends the stage, and notes the units that stay in the progress."""
        for target in self.targets:
            target.finish(self.progress, self._say)
