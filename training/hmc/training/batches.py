"""Batches by tokens: deterministic in (seed, epoch), so a run can resume at any step and split over processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hmc.training.corpus import TokenCorpus


@dataclass(frozen=True)
class Batch:
    """Padded ids: source `[B, S]`, target_in `[B, T]` (pad first), target_out `[B, T]` (EOS last)."""

    source: Tensor
    target_in: Tensor
    target_out: Tensor

    def to(self, device: torch.device) -> Batch:
        """The same batch on another device."""
        return Batch(*(t.to(device, non_blocking=True) for t in (self.source, self.target_in, self.target_out)))


def plan_epoch(corpus: TokenCorpus, batch_tokens: int, seed: int, epoch: int) -> list[npt.NDArray[np.int64]]:
    """Row indices of every batch of an epoch, in the order they are used.

    Rows of similar length go together; `rows × longest side` of a batch stays within batch_tokens / 2 a side.
    """
    rng = np.random.default_rng([seed, epoch])
    longest = np.maximum(corpus.source_lengths, corpus.target_lengths)
    order = rng.permutation(len(corpus))
    order = order[np.lexsort((corpus.source_lengths[order], longest[order]))]
    room, batches, start = max(1, batch_tokens // 2), [], 0
    widths = longest[order]
    while start < len(order):
        # widths ascend, so the last row decides; grow while rows × width fits
        end = start + 1
        while end < len(order) and (end - start + 1) * int(widths[end]) <= room:
            end += 1
        batches.append(order[start:end])
        start = end
    return [batches[i] for i in rng.permutation(len(batches))]


def pad_rows(rows: list[list[int]], pad_id: int) -> Tensor:
    """Token lists → `[B, longest]`, padded on the right."""
    out = np.full((len(rows), max(map(len, rows))), pad_id, np.int64)
    for index, row in enumerate(rows):
        out[index, : len(row)] = row
    return torch.from_numpy(out)


def make_batch(source: list[list[int]], target: list[list[int]], pad_id: int) -> Batch:
    """Pads and shifts: the decoder reads pad, y_1 … y_{T-1} and predicts y_1 … y_T (y_T = EOS)."""
    shifted = [[pad_id, *row[:-1]] for row in target]
    return Batch(pad_rows(source, pad_id), pad_rows(shifted, pad_id), pad_rows(target, pad_id))


class BatchStream:
    """Endless batches. `position` (epoch, batch within it) is all the state there is.

    Process `rank` of `world` takes every world-th batch; all processes advance together.
    """

    def __init__(
        self, corpus: TokenCorpus, batch_tokens: int, seed: int, pad_id: int, rank: int = 0, world: int = 1
    ) -> None:
        self.corpus, self.batch_tokens, self.seed, self.pad_id = corpus, batch_tokens, seed, pad_id
        self.rank, self.world = rank, world
        self.epoch, self.index = 0, 0

    def batches_per_epoch(self) -> int:
        """Batches each process sees in the current epoch."""
        return len(plan_epoch(self.corpus, self.batch_tokens, self.seed, self.epoch)) // self.world

    def __iter__(self) -> Iterator[Batch]:
        while True:
            plan = plan_epoch(self.corpus, self.batch_tokens, self.seed, self.epoch)
            per_process = max(1, len(plan) // self.world)
            while self.index < per_process:
                rows = plan[(self.index * self.world + self.rank) % len(plan)]
                self.index += 1
                yield make_batch(*self.corpus.batch(rows), self.pad_id)
            self.epoch, self.index = self.epoch + 1, 0
