"""Beam search over the PyTorch model: plain and exact, used for dev BLEU and as the reference the engine is tested against."""

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
    with early stopping off: a sentence ends when no running hypothesis can beat its worst kept one at the present length.
    At max_length tokens (EOS included) what still runs is taken as it is.
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
    finished: list[list[Hypothesis]] = [[] for _ in range(batch)]
    done = [False] * batch
    first_row = torch.arange(batch, device=device)[:, None] * beam

    for length in range(1, max_length + 1):
        log_probs = model.step(tokens, cache, mask).float().log_softmax(-1).view(batch, beam, -1)
        log_probs[:, :, arch.pad_id] = float("-inf")
        total = (scores[:, :, None] + log_probs).view(batch, -1)
        top, flat = total.topk(2 * beam, dim=-1)
        parents, ids = flat // log_probs.size(-1), flat % log_probs.size(-1)
        keep = _collect(top, parents, ids, history.view(batch, beam, -1), finished, done, beam, length, length_penalty, arch.eos_id)
        if all(done):
            break
        scores = top.gather(1, keep)
        chosen = (first_row + parents.gather(1, keep)).view(-1)
        tokens = ids.gather(1, keep).view(-1, 1)
        history = torch.cat([history.index_select(0, chosen), tokens], 1)
        cache.select(chosen)
    _take_unfinished(scores / max_length**length_penalty, history.view(batch, beam, -1), finished, done)
    return [sorted(found, key=lambda h: -h.score)[:beam] for found in finished]


def _collect(
    top: Tensor, parents: Tensor, ids: Tensor, history: Tensor, finished: list[list[Hypothesis]], done: list[bool],
    beam: int, length: int, length_penalty: float, eos: int,
) -> Tensor:  # fmt: skip
    """Moves hypotheses that end in EOS to `finished`; returns `[B, beam]` columns of the candidates that run on."""
    keep = torch.zeros((top.size(0), beam), dtype=torch.long, device=top.device)
    rows_top, rows_ids, rows_parents = top.tolist(), ids.tolist(), parents.tolist()
    for row in range(top.size(0)):
        running = [c for c in range(2 * beam) if rows_ids[row][c] != eos][:beam]
        running += [0] * (beam - len(running))
        keep[row] = torch.tensor(running)
        if done[row]:
            continue
        for column in range(beam):
            if rows_ids[row][column] == eos and rows_top[row][column] > float("-inf"):
                score = rows_top[row][column] / length**length_penalty
                finished[row].append(Hypothesis(history[row, rows_parents[row][column]].tolist(), score))
        finished[row] = sorted(finished[row], key=lambda h: -h.score)[:beam]
        best_running = rows_top[row][running[0]] / length**length_penalty
        full = len(finished[row]) == beam
        done[row] = full and (beam == 1 or best_running <= finished[row][-1].score)
        done[row] |= rows_top[row][running[0]] == float("-inf")
    return keep


def _take_unfinished(scores: Tensor, history: Tensor, finished: list[list[Hypothesis]], done: list[bool]) -> None:
    """The limit is reached: running hypotheses of sentences that are not done compete as they are."""
    for row in range(len(done)):
        if not done[row]:
            rows = zip(history[row].tolist(), scores[row].tolist(), strict=True)
            finished[row] += [Hypothesis(ids, score) for ids, score in rows if score > float("-inf")]
