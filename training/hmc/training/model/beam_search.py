"""Beam search with the PyTorch model: for dev BLEU, and as the reference that tests compare the engine with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hmc.training.data.batches import pad_rows
from hmc.training.model.transformer import Transformer


@dataclass(frozen=True)
class Hypothesis:
    """A translation."""

    ids: list[int]
    """Token ids without EOS."""
    score: float
    """Summed log-probability (nats) divided by length ** length_penalty; the length counts EOS."""


def length_limit(model: Transformer, length: int) -> int:
    """Most tokens of a translation, EOS included: 2 · length + 10, and fewer than the model has positions.

    length: tokens of its source, EOS included. Each sentence has its own limit, so it does not depend on its batch.
    """
    return min(model.arch.max_positions - 1, 2 * length + 10)


@torch.no_grad()
def beam_search(
    model: Transformer, sources: list[list[int]], *, openings: Sequence[Sequence[int]], beam: int = 4,
    length_penalty: float = 1.0, max_length: int | Sequence[int] = 128,
) -> list[list[Hypothesis]]:  # fmt: skip
    """Translates `sources` (ids, EOS last); each result lists up to `beam` hypotheses, best first.

    Scores and the end of a search are those of Hugging Face generate with early stopping off: a sentence ends when no
    running hypothesis, scored at its present length, beats the worst of the `beam` best ended ones. max_length: longest
    translation in tokens, EOS included, one limit for all sentences or one for each; hypotheses that still run at the
    limit count as ended. openings: the tokens with which each translation begins, whatever the model prefers
    (`Vocabulary.opening`): a list of at most one token for each source. A result is empty when no score is finite.
    """
    arch = model.arch
    device = model.shared.weight.device
    limits = [max_length] * len(sources) if isinstance(max_length, int) else max_length
    source = pad_rows(sources, arch.pad_id).to(device)
    memory, mask = model.encode(source)
    batch = len(sources)
    rows = torch.arange(batch, device=device).repeat_interleave(beam)
    cache = model.start_cache(memory)
    cache.select(rows)
    mask = None if mask is None else mask.index_select(0, rows)
    tokens = torch.full((batch * beam, 1), arch.decoder_start, dtype=torch.long, device=device)
    scores = torch.full((batch, beam), float("-inf"), device=device)
    scores[:, 0] = 0.0
    history = torch.empty((batch * beam, 0), dtype=torch.long, device=device)
    ended = [_Ended(beam, length_penalty, arch.eos_id) for _ in range(batch)]
    first_row = torch.arange(batch, device=device)[:, None] * beam

    for length in range(1, max(limits) + 1):
        log_probs = model.step(tokens, cache, mask).float().log_softmax(-1).view(batch, beam, -1)
        log_probs[:, :, arch.pad_id] = float("-inf")
        for n, opening in enumerate(openings if length == 1 else ()):
            if opening:
                log_probs[n] = float("-inf")
                log_probs[n, :, opening[0]] = 0.0
        total = (scores[:, :, None] + log_probs).view(batch, -1)
        top, flat = total.topk(2 * beam, dim=-1)
        parents = flat // log_probs.size(-1)
        ids = flat % log_probs.size(-1)
        histories = history.view(batch, beam, -1)
        running = [
            e.collect(top[n].tolist(), parents[n].tolist(), ids[n].tolist(), histories[n], length)
            for n, e in enumerate(ended)
        ]
        keep = torch.tensor(running, device=device)
        if all(e.done for e in ended):
            break
        scores = top.gather(1, keep)
        chosen = (first_row + parents.gather(1, keep)).view(-1)
        tokens = ids.gather(1, keep).view(-1, 1)
        history = torch.cat([history.index_select(0, chosen), tokens], 1)
        cache.select(chosen)
        for n in (n for n, limit in enumerate(limits) if limit == length):
            ended[n].take_running(scores[n].tolist(), history.view(batch, beam, -1)[n].tolist(), length)
        if all(e.done for e in ended):
            break
    return [e.best() for e in ended]


class _Ended:
    """The ended hypotheses of one sentence. `done`: its search is over."""

    def __init__(self, beam: int, length_penalty: float, eos_id: int) -> None:
        self.beam = beam
        self.length_penalty = length_penalty
        self.eos_id = eos_id
        self.found: list[Hypothesis] = []
        self.done = False

    def best(self) -> list[Hypothesis]:
        """Returns at most `beam` hypotheses, best first."""
        return sorted(self.found, key=lambda h: -h.score)[: self.beam]

    def collect(self, top: list[float], parents: list[int], ids: list[int], history: Tensor, length: int) -> list[int]:
        """Adds candidates that end in EOS; returns the `beam` columns that go on.

        top, parents, ids: scores, parent hypotheses and tokens of the 2 · beam best candidates, best first. Only the
        first `beam` candidates may end. history: `[beam, length - 1]` tokens so far.
        """
        running = [column for column, token in enumerate(ids) if token != self.eos_id][: self.beam]
        if not self.done:
            norm = length**self.length_penalty
            for column in range(self.beam):
                if ids[column] == self.eos_id and top[column] > float("-inf"):
                    self.found.append(Hypothesis(history[parents[column]].tolist(), top[column] / norm))
            best = self.best()
            full = len(best) == self.beam and top[running[0]] / norm <= best[-1].score
            self.done = full or top[running[0]] == float("-inf")
        return running

    def take_running(self, scores: list[float], history: list[list[int]], length: int) -> None:
        """Ends the search at the length limit: running hypotheses count as ended."""
        if not self.done:
            alive = [(ids, score) for ids, score in zip(history, scores, strict=True) if score > float("-inf")]
            self.found += [Hypothesis(ids, score / length**self.length_penalty) for ids, score in alive]
            self.done = True
