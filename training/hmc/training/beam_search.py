"""Beam search over the PyTorch model: plain and exact, for dev BLEU and as the engine's reference in tests."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hmc.training.batches import pad_rows
from hmc.training.transformer import Transformer


@dataclass(frozen=True)
class Hypothesis:
    """A translation: ids without EOS, and its summed log-probability divided by length ** penalty."""

    ids: list[int]
    score: float


@torch.no_grad()
def beam_search(
    model: Transformer, sources: list[list[int]], *, beam: int = 4, length_penalty: float = 1.0, max_length: int = 128
) -> list[list[Hypothesis]]:
    """Translates `sources` (ids with EOS); each result lists up to `beam` hypotheses, best first.

    Finished hypotheses are scored log P / length ** length_penalty, length counting EOS, as in Hugging Face generate
    with early stopping off: a sentence ends when no running hypothesis can beat its worst kept one at its present
    length. At max_length tokens (EOS included) what still runs is taken as it is.
    """
    arch, device = model.arch, model.shared.weight.device
    source = pad_rows(sources, arch.pad_id).to(device)
    memory, mask = model.encode(source)
    batch = len(sources)
    rows = torch.arange(batch, device=device).repeat_interleave(beam)
    cache = model.start_cache(memory)
    cache.select(rows)
    mask = None if mask is None else mask.index_select(0, rows)
    tokens = torch.full((batch * beam, 1), arch.pad_id, dtype=torch.long, device=device)
    scores = torch.full((batch, beam), float("-inf"), device=device)
    scores[:, 0] = 0.0
    history = torch.empty((batch * beam, 0), dtype=torch.long, device=device)
    ended = [_Ended(beam, length_penalty, arch.eos_id) for _ in range(batch)]
    first_row = torch.arange(batch, device=device)[:, None] * beam

    for length in range(1, max_length + 1):
        log_probs = model.step(tokens, cache, mask).float().log_softmax(-1).view(batch, beam, -1)
        log_probs[:, :, arch.pad_id] = float("-inf")
        total = (scores[:, :, None] + log_probs).view(batch, -1)
        top, flat = total.topk(2 * beam, dim=-1)
        parents, ids = flat // log_probs.size(-1), flat % log_probs.size(-1)
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
    for e, row_scores, row_history in zip(ended, scores.tolist(), history.view(batch, beam, -1), strict=True):
        e.take_unfinished(row_scores, row_history.tolist(), max_length)
    return [e.best() for e in ended]


class _Ended:
    """The hypotheses of one sentence that have ended, and whether its search is over."""

    def __init__(self, beam: int, length_penalty: float, eos_id: int) -> None:
        self.beam, self.length_penalty, self.eos_id = beam, length_penalty, eos_id
        self.found: list[Hypothesis] = []
        self.done = False

    def best(self) -> list[Hypothesis]:
        """At most `beam`, best first."""
        return sorted(self.found, key=lambda h: -h.score)[: self.beam]

    def collect(self, top: list[float], parents: list[int], ids: list[int], history: Tensor, length: int) -> list[int]:
        """Files candidates that end in EOS among the first `beam` of 2 · beam; returns the columns that run on."""
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

    def take_unfinished(self, scores: list[float], history: list[list[int]], length: int) -> None:
        """The limit is reached: running hypotheses of a sentence that is not done compete as they are."""
        if not self.done:
            alive = [(ids, score) for ids, score in zip(history, scores, strict=True) if score > float("-inf")]
            self.found += [Hypothesis(ids, score / length**self.length_penalty) for ids, score in alive]
