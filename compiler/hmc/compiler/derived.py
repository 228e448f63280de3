"""Arrays made from other arrays: each is made once, and shared by all graphs of all levels that need it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Made = TypeVar("Made")


class DerivedArrays:
    """Remembers what functions made of arrays: stacked, converted and quantised weights.

    Arrays are compared by identity, so they must not be changed. An entry is dropped once one of the arrays that it was
    made from is gone. So weights that two levels share are quantised once, and the weights of a single level do not
    outlive it.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[Any, ...], Any] = {}

    def of(self, make: Callable[..., Made], *sources: Array, **options: Any) -> Made:
        """`make(*sources, **options)`, made by the first call. `make` must be a function of a module, not a lambda."""
        key = (make, *map(id, sources), *sorted(options.items()))
        if key in self._made:
            found: Made = self._made[key]
            return found
        made = make(*sources, **options)
        if not any(made is source for source in sources):  # else the entry would keep its own source alive
            self._keep(key, made, sources)
        return made

    def given(self, make: Callable[[Array], Made], source: Array, made: Made) -> None:
        """Sets what `of(make, source)` returns from now on, instead of a call of `make`."""
        self._keep((make, id(source)), made, (source,))

    def _keep(self, key: tuple[Any, ...], made: Any, sources: Sequence[Array]) -> None:
        if key not in self._made:
            for source in sources:
                weakref.finalize(source, self._made.pop, key, None)
        self._made[key] = made


def stack(*arrays: Array) -> Array:
    """Arrays one below the other: weights `[out, in]` or biases `[out]` of linear layers that share their input."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
