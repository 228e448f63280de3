"""Copies from the host to a GPU for which neither has to wait, and batches that are made ahead of time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

Item = TypeVar("Item")


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Returns the tensor on another device. Copies to a GPU are asynchronous, from pinned memory."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def made_ahead(items: Iterator[Item], number: int, begin: Callable[[], object] | None = None) -> Iterator[Item]:
    """Yields endless `items` in their order; a thread makes up to `number` of them before they are asked for.

    begin: called once in that thread before the first item. An error in making an item is raised where the item would
    be yielded.
    """
    with ThreadPoolExecutor(1, "batches", begin) as pool:
        waiting = deque(pool.submit(next, items) for _ in range(number))
        while True:
            yield waiting.popleft().result()
            waiting.append(pool.submit(next, items))
