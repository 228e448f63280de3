"""Targets of a closing stage that are numbers: so many heads, so many neurons, or what a λ leaves."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hmc.artifact.model.budgets import HeadBudget
from hmc.artifact.model.ffn import Neurons, Stack
from hmc.artifact.model.heads import KINDS, HeadLayout
from hmc.training.pruning.gate_sets import GateSet, HeadGates, NeuronGates
from hmc.training.pruning.pressure import BudgetPressure, l0_penalty, top
from hmc.training.pruning.results import describe_neurons, describe_undecided, describe_unsettled
from hmc.training.pruning.schedule import ClosingGates, ClosingTarget, Say
from hmc.training.pruning.settings import PruneSettings
from hmc.training.pruning.stages import PruneProgress


class NumberTarget(ClosingTarget):
    """A number for each part of one set of gates. Without any part it is the λ form."""

    def __init__(
        self, gates: GateSet, group: str, closed: Tensor, parts: Sequence[tuple[Tensor, int]], settings: PruneSettings
    ) -> None:
        """group, closed: as in `ClosingGates`. parts: positions of gates, and how many of them end open; none in the λ
        form."""
        self.own = ClosingGates(gates, group, closed)
        self.sets = [self.own]
        self.settings = settings
        left = [(positions[~closed[positions]], number) for positions, number in parts]
        self.parts = [(positions, number) for positions, number in left if len(positions)]
        self.starts: list[float] = []
        """Expected open gates of each part when the stage began."""
        self.pressures = [BudgetPressure(len(positions), device=closed.device) for positions, _ in self.parts]

    def begin(self) -> None:
        expected = self.own.gates.open_probabilities().detach()
        self.starts = [float(expected[positions].sum()) for positions, _ in self.parts]

    def _restore(self, starts: Sequence[float], pressures: Sequence[dict[str, float]]) -> None:
        self.starts = list(starts)
        self.pressures = [
            BudgetPressure(len(positions), saved["linear"], saved["quadratic"], saved["rate"], self.own.closed.device)
            for (positions, _), saved in zip(self.parts, pressures, strict=True)
        ]

    def budgets(self, fallen: float) -> list[float]:
        """Returns the budget of each part: the number of gates that should be open in expectation."""
        return [start + (number - start) * fallen for start, (_, number) in zip(self.starts, self.parts, strict=True)]

    def pressure(self, fallen: float) -> Tensor:
        expected = self.own.gates.open_probabilities()
        if self.settings.l0_lambda is not None:
            return l0_penalty(expected, self.settings.l0_lambda)
        penalty = expected.new_zeros(())
        for (positions, _), budget, pressure in zip(self.parts, self.budgets(fallen), self.pressures, strict=True):
            penalty = penalty + pressure.penalty(expected[positions], budget)
        return penalty

    def ascend(self, fallen: float) -> None:
        expected = self.own.gates.open_probabilities().detach()
        for (positions, _), pressure, budget in zip(self.parts, self.pressures, self.budgets(fallen), strict=True):
            pressure.ascend(expected[positions].sum(), budget)

    def keep(self) -> list[Tensor]:
        """Returns the gates of highest log α of each part, or in the λ form all gates with P(g = 1) > P(g = 0), that is
        log α > 0 (Voita et al. 2019, footnote 7)."""
        return [self._best(self.own.gates.log_alpha().detach())]

    def _best(self, log_alpha: Tensor) -> Tensor:
        if self.settings.l0_lambda is not None:
            return (log_alpha > 0) & ~self.own.closed
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
        closed = torch.tensor([head not in kept for head in gates.heads], device=gates.log_alpha().device)
        cross = gates.positions(("cross",))
        self._cross = cross[~closed[cross]]
        parts = [(gates.positions(kinds), heads) for kinds, heads in budget.parts] if budget else []
        super().__init__(gates, "gates", closed, parts, settings)

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
        flags = self.own.undecided(self.keep()[0])
        probabilities = self.gates.open_probabilities()
        rows = zip(self.gates.heads, flags.tolist(), probabilities.tolist(), strict=True)
        progress.undecided = {str(head): probability for head, is_undecided, probability in rows if is_undecided}

    def scalars(self, fallen: float) -> dict[str, float]:
        """Returns the budget, expected open heads in all and by kind, gates that have not settled."""
        by_kind = self.gates.expected_open()
        found = {"budget": sum(self.budgets(fallen))} if self.parts else {}
        found |= {"open": sum(by_kind.values()), "unsettled": float(len(self.gates.unsettled()))}
        return found | {f"open/{kind}": value for kind, value in by_kind.items()}

    def layout(self) -> HeadLayout:
        """Returns the model's layout without the heads whose gates are not kept."""
        keep = self.keep()[0].tolist()
        removed = {head for head, is_kept in zip(self.gates.heads, keep, strict=True) if not is_kept}
        whole = self.gates.layout
        kept = [head for head in whole.heads() if head not in removed]
        return HeadLayout.from_heads(kept, len(whole.encoder_self), len(whole.decoder_self))

    def finish(self, progress: PruneProgress, say: Say) -> None:
        layout = self.layout()
        progress.layout = layout.to_json()
        counts = {kind: sum(map(len, layout[kind])) for kind in KINDS}
        settles = self.settings.l0_lambda is None or self.settings.settle_gates
        left = describe_undecided(progress.undecided) if settles else describe_unsettled(self.gates)
        say(f"{layout.total} open heads: {counts}; {left}")


class NeuronTarget(NumberTarget):
    """A number of feed-forward neurons. There are thousands of them, so reports give their number, while they name
    single heads."""

    def __init__(self, gates: NeuronGates, number: int, settings: PruneSettings, within: Neurons | None = None) -> None:
        """number: neurons of the whole model that end open. within: neurons that the stage before left open."""
        self.gates = gates
        every = torch.ones_like(gates.log_alpha(), dtype=torch.bool)
        closed = ~gates.mask(within) if within else ~every
        super().__init__(gates, "neurons", closed, [(every.nonzero()[:, 0], number)], settings)

    def restore(self, progress: PruneProgress) -> None:
        self._restore(progress.neuron_starts, progress.neuron_pressures)

    def note(self, progress: PruneProgress) -> None:
        progress.neuron_starts = self.starts
        progress.neuron_pressures = [pressure.to_json() for pressure in self.pressures]

    def decide(self, progress: PruneProgress, say: Say) -> None:  # noqa: ARG002 - nothing to say yet
        """Notes the number of gates that did not settle by themselves."""
        progress.neurons_undecided = int(self.own.undecided(self.keep()[0]).sum())

    def scalars(self, fallen: float) -> dict[str, float]:
        """Returns the budget, expected open neurons in all and by stack, gates that have not settled."""
        by_stack = self.gates.expected_open()
        found = {"neuron_budget": sum(self.budgets(fallen)), "neurons": sum(by_stack.values())}
        found["neurons_unsettled"] = float(self.gates.is_unsettled().sum())
        return found | {f"neurons/{stack}": value for stack, value in by_stack.items()}

    def kept(self) -> dict[Stack, list[list[int]]]:
        """Returns the positions of the neurons whose gates are kept, in every layer."""
        return self.gates.chosen(self.keep()[0])

    def finish(self, progress: PruneProgress, say: Say) -> None:
        progress.neurons = self.kept()
        say(describe_neurons(progress.neurons, progress.neurons_undecided))
