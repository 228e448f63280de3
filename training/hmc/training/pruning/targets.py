"""Targets of a closing stage that are numbers: so many heads, so many neurons, or what a λ leaves."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

import torch
from torch import Tensor

from hmc.artifact.model.budgets import HeadBudget
from hmc.artifact.model.ffn import Neurons, Stack
from hmc.artifact.model.heads import KINDS, HeadLayout
from hmc.training.pruning.gate_sets import GateSet, HeadGates, NeuronGates
from hmc.training.pruning.pressure import BudgetPressure, l0_penalty, top
from hmc.training.pruning.results import describe_neurons, describe_undecided, describe_unsettled
from hmc.training.pruning.schedule import ClosingTarget, Say
from hmc.training.pruning.settings import PruneSettings
from hmc.training.pruning.stages import PruneProgress


class NumberTarget(ClosingTarget):
    """A number for each part of one set of gates. Without any part it is the λ form."""

    def __init__(
        self, gates: GateSet, closed: Tensor, parts: Sequence[tuple[Tensor, int]], settings: PruneSettings
    ) -> None:
        """closed: `[total]` booleans, gates that an earlier stage closed. parts: positions of gates, and how many of
        them end open; none in the λ form."""
        gates.close(closed)
        self.sets = [gates]
        self.settings = settings
        self.parts: list[tuple[Tensor, int]] = []
        for positions, number in parts:
            closable = positions[~closed[positions]]
            if len(closable):
                self.parts.append((closable, number))
        self.starts: list[float] = []
        """Expected open gates of each part when the stage began."""
        self.pressures = [BudgetPressure(len(positions), device=closed.device) for positions, _ in self.parts]

    def begin(self) -> None:
        expected = self.sets[0].open_probabilities().detach()
        self.starts = [float(expected[positions].sum()) for positions, _ in self.parts]

    def _restore(self, starts: Sequence[float], pressures: Sequence[dict[str, float]]) -> None:
        self.starts = list(starts)
        for pressure, saved in zip(self.pressures, pressures, strict=True):
            pressure.restore(saved)

    def budgets(self, fallen: float) -> list[float]:
        """Returns the budget of each part: the number of gates that should be open in expectation."""
        return [start + (number - start) * fallen for start, (_, number) in zip(self.starts, self.parts, strict=True)]

    def pressure(self, fallen: float) -> Tensor:
        expected = self.sets[0].open_probabilities()
        if self.settings.l0_lambda is not None:
            return l0_penalty(expected, self.settings.l0_lambda)
        penalty = expected.new_zeros(())
        for (positions, _), budget, pressure in zip(self.parts, self.budgets(fallen), self.pressures, strict=True):
            penalty = penalty + pressure.penalty(expected[positions], budget)
        return penalty

    def ascend(self, fallen: float) -> None:
        expected = self.sets[0].open_probabilities().detach()
        for (positions, _), pressure, budget in zip(self.parts, self.pressures, self.budgets(fallen), strict=True):
            pressure.ascend(expected[positions].sum(), budget)

    def keep(self) -> list[Tensor]:
        """Returns the gates of highest log α of each part, or in the λ form all gates with P(g = 1) > P(g = 0), that is
        log α > 0 (Voita et al. 2019, footnote 7)."""
        return [self._best(self.sets[0].log_alpha().detach())]

    def _best(self, log_alpha: Tensor) -> Tensor:
        if self.settings.l0_lambda is not None:
            return (log_alpha > 0) & ~self.sets[0].closed
        keep = torch.zeros_like(log_alpha, dtype=torch.bool)
        for positions, number in self.parts:
            keep[positions] = top(log_alpha[positions], number)
        return keep


class HeadTarget(NumberTarget):
    """A budget of heads, or a λ."""

    def __init__(
        self, gates: HeadGates, budget: HeadBudget | None, settings: PruneSettings, within: HeadLayout | None = None
    ) -> None:
        """budget: None for the λ form. within: layout left by the stage before; heads outside it stay closed."""
        self.gates = gates
        kept = set((within or gates.layout).heads())
        closed = torch.tensor([head not in kept for head in gates.heads], device=gates.closed.device)
        cross = gates.positions(("cross",))
        self._cross = cross[~closed[cross]]
        parts = [(gates.positions(kinds), heads) for kinds, heads in budget.parts] if budget else []
        super().__init__(gates, closed, parts, settings)

    def _best(self, log_alpha: Tensor) -> Tensor:
        """The cross-attention head of highest log α always stays.

        This changes something only where no such head would stay: the decoder could then not see the source.
        """
        if len(self._cross):
            best = self._cross[log_alpha[self._cross].argmax(0, keepdim=True)]
            log_alpha = log_alpha.index_fill(0, best, torch.inf)
        return super()._best(log_alpha)

    def restore(self, progress: PruneProgress) -> None:
        self._restore(progress.starts, progress.pressures)

    def note(self, progress: PruneProgress) -> None:
        progress.starts = self.starts
        progress.pressures = [pressure.to_json() for pressure in self.pressures]

    def decide(self, progress: PruneProgress, say: Say) -> None:  # noqa: ARG002 - nothing to say yet
        """Notes the gates (named KIND.LAYER.HEAD) that did not settle by themselves, with their P(g ≠ 0)."""
        probabilities = zip(map(str, self.gates.heads), self.gates.open_probabilities().tolist(), strict=True)
        progress.undecided = dict(compress(probabilities, self.gates.undecided(self.keep()[0]).tolist()))

    def scalars(self, fallen: float) -> dict[str, float]:
        """Returns the budget, expected open heads in all and by kind, gates that have not settled."""
        by_kind = self.gates.expected_open()
        scalars = {"budget": sum(self.budgets(fallen))} if self.parts else {}
        scalars |= {"open": sum(by_kind.values()), "unsettled": float(len(self.gates.unsettled()))}
        return scalars | {f"open/{kind}": value for kind, value in by_kind.items()}

    def layout(self) -> HeadLayout:
        """Returns the model's layout without the heads whose gates are not kept."""
        removed = set(compress(self.gates.heads, (~self.keep()[0]).tolist()))
        whole = self.gates.layout
        kept = [head for head in whole.heads() if head not in removed]
        return HeadLayout.from_heads(kept, len(whole.encoder_self), len(whole.decoder_self))

    def finish(self, progress: PruneProgress, say: Say) -> None:
        layout = self.layout()
        progress.layout = layout.to_json()
        counts = {kind: sum(map(len, layout[kind])) for kind in KINDS}
        settles = self.settings.l0_lambda is None or self.settings.settle_gates
        undecided = describe_undecided(progress.undecided) if settles else describe_unsettled(self.gates)
        say(f"{layout.total} open heads: {counts}; {undecided}")


class NeuronTarget(NumberTarget):
    """A number of feed-forward neurons. There are thousands of them, so reports give their number, while they name
    single heads."""

    def __init__(self, gates: NeuronGates, number: int, settings: PruneSettings, within: Neurons | None = None) -> None:
        """number: neurons of the whole model that end open. within: neurons that the stage before left open."""
        self.gates = gates
        closed = ~gates.mask(within) if within else torch.zeros_like(gates.closed)
        every = torch.arange(gates.total, device=closed.device)
        super().__init__(gates, closed, [(every, number)], settings)

    def restore(self, progress: PruneProgress) -> None:
        self._restore(progress.neuron_starts, progress.neuron_pressures)

    def note(self, progress: PruneProgress) -> None:
        progress.neuron_starts = self.starts
        progress.neuron_pressures = [pressure.to_json() for pressure in self.pressures]

    def decide(self, progress: PruneProgress, say: Say) -> None:  # noqa: ARG002 - nothing to say yet
        """Notes the number of gates that did not settle by themselves."""
        progress.neurons_undecided = int(self.gates.undecided(self.keep()[0]).sum())

    def scalars(self, fallen: float) -> dict[str, float]:
        """Returns the budget, expected open neurons in all and by stack, gates that have not settled."""
        by_stack = self.gates.expected_open()
        scalars = {"neuron_budget": sum(self.budgets(fallen)), "neurons": sum(by_stack.values())}
        scalars["neurons_unsettled"] = float(self.gates.is_unsettled().sum())
        return scalars | {f"neurons/{stack}": value for stack, value in by_stack.items()}

    def kept(self) -> dict[Stack, list[list[int]]]:
        """Returns the positions of the neurons whose gates are kept, in every layer."""
        return self.gates.chosen(self.keep()[0])

    def finish(self, progress: PruneProgress, say: Say) -> None:
        progress.neurons = self.kept()
        say(describe_neurons(progress.neurons, progress.neurons_undecided))
