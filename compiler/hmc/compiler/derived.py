"""Arrays made from other arrays: each is made once, and shared by all graphs of all levels that need it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Result = TypeVar("Result")


class DerivedArrays:
    """Remembers what functions made of arrays: stacked, converted and quantised weights.

    Arrays are compared by identity, so they must not be changed. An entry is dropped once one of the arrays that it was
    made from is gone. So weights that two levels share are quantised once, and the weights of a single level do not
    outlive it.
    """

    def __init__(self) -> None:
        self._results: dict[tuple[Any, ...], Any] = {}

    def get(self, make: Callable[..., Result], *sources: Array, **options: Any) -> Result:
        """`make(*sources, **options)`, made by the first call. `make` must be a function of a module, not a lambda."""
        key = (make, *map(id, sources), *sorted(options.items()))
        if key in self._results:
            known: Result = self._results[key]
            return known
        result = make(*sources, **options)
        if not any(result is source for source in sources):  # else the entry would keep its own source alive
            self._keep(key, result, sources)
        return result

    def put(self, make: Callable[[Array], Result], source: Array, result: Result) -> None:
        """Sets what `get(make, source)` returns from now on, instead of a call of `make`."""
        self._keep((make, id(source)), result, (source,))

    def _keep(self, key: tuple[Any, ...], result: Any, sources: Sequence[Array]) -> None:
        if key not in self._results:
            for source in sources:
                weakref.finalize(source, self._results.pop, key, None)
        self._results[key] = result


def stack(*arrays: Array) -> Array:
    """Arrays one below the other: weights `[out, in]` or biases `[out]` of linear layers that share their input."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
