"""Watching the updates of a run, and ending a run in one of them, by the hooks that PyTorch's optimisers call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook


@contextmanager
def interrupted(number: int) -> Iterator[None]:
    """In the block runs a run, which ends in its update `number`, counted in the block from 1."""
    made = 0

    def fail(*_: Any) -> None:
        nonlocal made
        made += 1
        if made == number:
            raise InterruptedError

    hook = register_optimizer_step_pre_hook(fail)
    try:
        with pytest.raises(InterruptedError):
            yield
    finally:
        hook.remove()


@contextmanager
def after_updates(call: Callable[[Optimizer], object]) -> Iterator[None]:
    """In the block, `call` is called after each update, with the optimiser that made it."""

    def made(optimizer: Optimizer, *_: Any) -> None:
        call(optimizer)

    hook = register_optimizer_step_post_hook(made)
    try:
        yield
    finally:
        hook.remove()
