"""Telling near ties from bugs where two systems translate a sentence differently.

Both translations are scored in double precision. Then the search is repeated with weights changed by about as much as
rounding changes them: if that gives both translations, the difference is a near tie.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch

from hmc.artifact.checkpoint.checkpoint import Checkpoint
from hmc.artifact.model.heads import HeadLayout
from hmc.training.model.beam_search import Hypothesis, beam_search
from hmc.training.model.checkpoints import model_from_checkpoint
from hmc.training.model.regimes import mask_to_layout
from hmc.training.model.transformer import Transformer

MOVED, DRAWS = 1e-6, 8
"""Relative size of the changes, about what fp32 rounding adds up to over a model's layers; and the number of tries."""
Ids = tuple[int, ...]


@dataclass(frozen=True)
class Difference:
    """A sentence that two systems translate differently."""

    sentence: int
    """Position in the test set, from 0."""
    ids: tuple[Ids, Ids]
    """Ids that each of the two systems wrote, without EOS."""
    scores: tuple[float, float]
    """Score of each in double precision: log P / length ** length_penalty, length counting EOS."""
    near_tie: bool | None
    """Whether searches with slightly changed weights find both. None: not tried."""

    def __str__(self) -> str:
        verdict = {True: "near tie", False: "NO near tie", None: "not tried for a tie"}[self.near_tie]
        return f"sentence {self.sentence}: scores {self.scores[0]:.7f} and {self.scores[1]:.7f}, {verdict}"


@dataclass(frozen=True)
class Comparison:
    """How many sentences two systems translate identically, and how they differ in the rest."""

    sentences: int
    equal: int
    differences: tuple[Difference, ...]

    @property
    def explained(self) -> bool:
        """Whether every difference is a near tie."""
        return all(d.near_tie for d in self.differences)

    def __str__(self) -> str:
        ties = sum(bool(d.near_tie) for d in self.differences)
        left = f"; {ties} of the other {len(self.differences)} are near ties" if self.differences else ""
        return "\n".join([f"{self.equal} of {self.sentences} equal{left}", *(f"    {d}" for d in self.differences)])

    def to_json(self) -> dict[str, Any]:
        """The comparison as values for JSON."""
        return asdict(self)


class Judge:
    """A checkpoint in double precision, with the heads outside `layout` masked."""

    def __init__(
        self, checkpoint: Checkpoint, layout: HeadLayout | None = None, *, length_penalty: float = 1.0
    ) -> None:
        self.model = reference_model(checkpoint, layout).double()
        self.arch, self.length_penalty = checkpoint.architecture, length_penalty

    @torch.no_grad()
    def score(self, source: Sequence[int], written: Sequence[int], *, complete: bool = True) -> float:
        """source: ids with EOS. written: ids without; complete: EOS follows them."""
        target = torch.tensor([[*written, *([self.arch.eos_id] if complete else [])]])
        shifted = torch.cat([torch.tensor([[self.arch.decoder_start]]), target[:, :-1]], 1)
        states = self.model(torch.tensor([list(source)]), shifted)
        each = self.model.logits(states).log_softmax(-1).gather(-1, target[..., None])
        total, length = float(each.sum()), float(target.size(1))
        return total / math.pow(length, self.length_penalty)

    def near_tie(self, source: Sequence[int], pair: tuple[Ids, Ids], *, beam: int, limit: int) -> bool:
        """Whether searches with slightly changed weights find both translations."""
        found: set[Ids] = set()
        for seed in range(DRAWS):
            with self._moved(seed):
                best = beam_search(
                    self.model, [list(source)], openings=(), beam=beam, max_length=limit,
                    length_penalty=self.length_penalty,
                )  # fmt: skip
            found.add(tuple(best[0][0].ids))
        return set(pair) <= found

    @contextmanager
    def _moved(self, seed: int) -> Iterator[None]:
        generator = torch.Generator().manual_seed(seed)
        former = [p.detach().clone() for p in self.model.parameters()]
        with torch.no_grad():
            for parameter in self.model.parameters():
                noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
                parameter.mul_(1 + MOVED * noise)
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, value in zip(self.model.parameters(), former, strict=True):
                    parameter.copy_(value)


def reference_model(checkpoint: Checkpoint, layout: HeadLayout | None = None) -> Transformer:
    """The checkpoint in PyTorch, fp32, without dropout; heads outside `layout` are masked."""
    model = model_from_checkpoint(checkpoint).eval()
    if layout is not None:
        mask_to_layout(model, checkpoint.layout, layout)
    return model


def reference_search(
    model: Transformer, sources: Sequence[Sequence[int]], *, beam: int, limit: int, batch_size: int = 32
) -> list[Hypothesis]:
    """The best hypothesis of each source by the plain beam search of training; batches of similar length."""
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    found: dict[int, Hypothesis] = {}
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        results = beam_search(model, [list(sources[i]) for i in rows], openings=(), beam=beam, max_length=limit)
        found |= {row: hypotheses[0] for row, hypotheses in zip(rows, results, strict=True)}
    return [found[i] for i in range(len(sources))]


def compare(
    sources: Sequence[Sequence[int]],
    ours: Sequence[Ids],
    theirs: Sequence[Ids],
    judge: Judge,
    near_tie: Callable[[int, tuple[Ids, Ids]], bool | None],
) -> Comparison:
    """Compares translations (ids without EOS) line for line; `near_tie` is asked about those that differ."""
    differences = tuple(
        Difference(n, (a, b), (judge.score(source, a), judge.score(source, b)), near_tie(n, (a, b)))
        for n, (source, a, b) in enumerate(zip(sources, ours, theirs, strict=True))
        if a != b
    )
    return Comparison(len(sources), len(sources) - len(differences), differences)
