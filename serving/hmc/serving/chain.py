"""Several tokens of one sentence read at once: what a row's next steps would give, one row for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hmc.serving.buffers import TYPES, bind_input, bind_output
from hmc.serving.sessions import Arrays

if TYPE_CHECKING:
    from hmc.serving.row_caches import RowCaches

MOST = 8
"""Tokens read at once."""


class Chain:
    """The graph "chain" over the caches of a sentence that is alone in them.

    Its rows are positions, and attend to the source each by itself, as those of the greedy graph do: so every row gives
    to the last bit what that graph would, and the sentence's cross keys and values are there once for each row.
    """

    def __init__(self, open_session: Callable[[], Any]) -> None:
        """open_session: called when the first chain runs."""
        self._open = open_session
        self._session: Any = None
        self._copies: Arrays = {}
        self._bindings: dict[tuple[int, int], tuple[Any, Arrays]] = {}
        """By rows and candidates."""
        self._fresh = False

    def forget_sentence(self) -> None:
        """Another sentence is in the caches."""
        self._fresh = False

    def forget_memory(self) -> None:
        """The caches' buffers are others."""
        self._bindings.clear()

    def run(self, caches: RowCaches, tokens: Sequence[int], length: int) -> Arrays:
        """Reads tokens `[R]`, the first of which is the row's token number `length`; R at most MOST. The answer is that
        of the greedy graph after each of them, `[R, …]`, valid until the next run."""
        self._session = self._session or self._open()
        if not self._fresh:
            self._copy_sentence(caches)
        count, sizes = len(tokens), (len(tokens), caches.candidates)
        if sizes not in self._bindings:
            self._bindings[sizes] = self._bind(caches, *sizes)
        binding, bound = self._bindings[sizes]
        bound["tokens"][...] = tokens
        bound["lengths"][...] = range(length, length + count)
        if "total_length" in bound:
            bound["total_length"][...] = length + count
        self._session.run_with_iobinding(binding)
        return {name: bound[name] for name in caches.outputs}

    def _copy_sentence(self, caches: RowCaches) -> None:
        """Cross keys and values, source length and shortlist once for each row that there may be."""
        of_rows = {name: buffer.view[:1] for name, buffer in caches.cross.items()}
        of_rows["source_lengths"] = caches.source_lengths[:1]
        if caches.shortlists:
            of_rows |= {name: caches.shortlists.inputs[name][:1] for name in ("listed", "listed_ids")}
            self._bindings.clear()  # the projection is another
        for name, one in of_rows.items():
            held = self._copies.get(name)
            if held is None or held.shape[1:] != one.shape[1:]:
                self._copies[name] = one.repeat(MOST, axis=0)
                self._bindings.clear()
            else:
                held[...] = one
        self._fresh = True

    def _bind(self, caches: RowCaches, count: int, candidates: int) -> tuple[Any, Arrays]:
        bound: Arrays = {}
        held = dict(caches.shortlists.inputs) if caches.shortlists else {}
        held |= {name: array[:count] for name, array in self._copies.items()}
        held |= {name: buffer.view[:1] for name, buffer in caches.own.items()}
        binding = self._session.io_binding()
        for wanted in self._session.get_inputs():
            if wanted.name not in held:
                size = 1 if wanted.name in ("total_length", "candidates") else count
                bound[wanted.name] = np.zeros(size, TYPES[wanted.type])
            bind_input(binding, wanted.name, held[wanted.name] if wanted.name in held else bound[wanted.name])
        bound["candidates"][0] = candidates
        for given in self._session.get_outputs():
            past = given.name.replace("present_cross_", "cross_").replace("present_", "past_")
            if past not in held:
                shape = [{"R": count, "K": candidates}[size] for size in given.shape]
                bound[given.name] = np.zeros(shape, TYPES[given.type])
            bind_output(binding, given.name, held[past] if past in held else bound[given.name])
        return binding, bound
