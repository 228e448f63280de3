"""Batches of a token budget, made ahead of time and copied to a GPU without waiting.

Their order depends on (seed, epoch) alone, so a run can resume at any batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hmc.training.data.corpus import TokenCorpus

Item = TypeVar("Item")
AHEAD = 4
"""Batches made before a GPU asks for them: enough to hide the plan of the next epoch and slow reads."""
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Batch:
    """Padded token ids, int64. `real` and `source_padded` are computed on the host, so no GPU has to be waited for."""

    source: Tensor
    """`[B, S]`: EOS last, padded on the right."""
    target_in: Tensor
    """`[B, T]`: decoder input, the start token first."""
    target_out: Tensor
    """`[B, T]`: tokens to predict, EOS last."""
    real: Tensor
    """`[N]`: positions of the tokens in the flattened `target_out` that are not padding."""
    source_padded: bool
    """True when a row of `source` holds padding."""

    @property
    def tokens(self) -> int:
        """Number of target tokens without padding."""
        return self.real.numel()

    def to(self, device: torch.device) -> Batch:
        """Returns the batch on another device. Copies to a GPU are asynchronous, from pinned memory."""
        return self._mapped(lambda tensor: to_device(tensor, device))

    def pinned(self) -> Batch:
        """Returns the batch in memory that a GPU copies from by itself. Needs a CUDA device."""
        return self._mapped(Tensor.pin_memory)

    def _mapped(self, move: Callable[[Tensor], Tensor]) -> Batch:
        ids = move(self.source), move(self.target_in), move(self.target_out)
        return Batch(*ids, real=move(self.real), source_padded=self.source_padded)


def plan_epoch(corpus: TokenCorpus, batch_tokens: int, seed: int, epoch: int) -> list[npt.NDArray[np.int64]]:
    """Returns the row indices of every batch of an epoch, in the order of use.

    Rows of similar length share a batch. Rows × longest side stays within batch_tokens / 2; only a single row may be
    longer.
    """
    rng = np.random.default_rng([seed, epoch])
    longest = np.maximum(corpus.source_lengths, corpus.target_lengths)
    order = rng.permutation(len(corpus))
    order = order[np.lexsort((corpus.source_lengths[order], longest[order]))]
    budget = max(1, batch_tokens // 2)
    batches = []
    start = 0
    widths = longest[order]
    while start < len(order):
        # Widths ascend, so the last row of a batch is its longest.
        end = start + 1
        while end < len(order) and (end - start + 1) * int(widths[end]) <= budget:
            end += 1
        batches.append(order[start:end])
        start = end
    return [batches[i] for i in rng.permutation(len(batches))]


def pad_rows(rows: list[list[int]], pad_id: int) -> Tensor:
    """Token lists → int64 `[rows, longest]`, padded on the right."""
    out = np.full((len(rows), max(map(len, rows))), pad_id, np.int64)
    for index, row in enumerate(rows):
        out[index, : len(row)] = row
    return torch.from_numpy(out)


def make_batch(source: list[list[int]], target: list[list[int]], pad_id: int, start_id: int | None = None) -> Batch:
    """Pads token lists (EOS last) to a batch on the CPU.

    The decoder reads the start token, y_1 … y_{T-1} and predicts y_1 … y_T, where y_T is EOS. start_id: None is pad.
    """
    start = pad_id if start_id is None else start_id
    shifted = [[start, *row[:-1]] for row in target]
    sources = pad_rows(source, pad_id)
    target_out = pad_rows(target, pad_id)
    real = target_out.flatten().ne(pad_id).nonzero().flatten()
    return Batch(sources, pad_rows(shifted, pad_id), target_out, real, bool(sources.eq(pad_id).any()))


class BatchStream:
    """Endless batches of a corpus. `epoch` and `index` (batch within the epoch) are its whole state.

    Process `rank` of `world` processes takes every `world`-th batch, so all processes advance together. For a GPU, a
    thread makes the next batches in pinned memory while the GPU computes. They do not count as taken: `epoch` and
    `index` tell where a resumed run goes on.
    """

    def __init__(
        self, corpus: TokenCorpus, batch_tokens: int, seed: int, pad_id: int, rank: int = 0, world: int = 1,
        device: torch.device = CPU, *, ahead: int | None = None, start_id: int | None = None,
    ) -> None:  # fmt: skip
        """device: where the batches will be used; they are yielded on the host. ahead: batches made ahead of time by a
        thread; None is AHEAD for a GPU and 0 for a CPU, whose cores compute the updates. start_id: as in
        `make_batch`."""
        self.corpus = corpus
        self.batch_tokens = batch_tokens
        self.seed = seed
        self.pad_id = pad_id
        self.start_id = start_id
        self.rank = rank
        self.world = world
        self.device = device
        if ahead is None:
            ahead = AHEAD if device.type == "cuda" else 0
        self.ahead = ahead
        self.epoch = 0
        self.index = 0

    @cached_property
    def _per_epoch(self) -> int:
        """Batches of this process in an epoch. Every epoch has as many: only their order is drawn anew."""
        return self._share(plan_epoch(self.corpus, self.batch_tokens, self.seed, 0))

    @property
    def epochs(self) -> int:
        """Epochs of which all batches were taken."""
        return self.epoch + (self.index >= self._per_epoch)

    def _share(self, plan: list[npt.NDArray[np.int64]]) -> int:
        return max(1, len(plan) // self.world)

    def __iter__(self) -> Iterator[Batch]:
        batches = self._from(self.epoch, self.index)
        if self.ahead:
            begin = partial(torch.cuda.set_device, self.device) if self.device.type == "cuda" else None
            batches = made_ahead(batches, self.ahead, begin)
        for self.epoch, self.index, batch in batches:
            yield batch

    def _from(self, epoch: int, index: int) -> Iterator[tuple[int, int, Batch]]:
        """Yields every batch from a position on, with the position after it."""
        while True:
            plan = plan_epoch(self.corpus, self.batch_tokens, self.seed, epoch)
            per_process = self._share(plan)
            while index < per_process:
                rows = plan[(index * self.world + self.rank) % len(plan)]
                index += 1
                batch = make_batch(*self.corpus.batch(rows), self.pad_id, self.start_id)
                yield epoch, index, batch.pinned() if self.device.type == "cuda" else batch
            epoch = epoch + 1
            index = 0


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Returns the tensor on another device. Copies to a GPU are asynchronous, from pinned memory."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def made_ahead(items: Iterator[Item], number: int, begin: Callable[[], object] | None = None) -> Iterator[Item]:
    """Yields endless `items` in their order; a thread makes up to `number` items in advance.

    begin: called once in that thread before the first item. An error in making an item is raised where the item would
    be yielded.
    """
    with ThreadPoolExecutor(1, "batches", begin) as pool:
        waiting = deque(pool.submit(next, items) for _ in range(number))
        while True:
            yield waiting.popleft().result()
            waiting.append(pool.submit(next, items))
