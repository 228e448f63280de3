"""A C program that runs a level in the native executor and compares every bit, for processors on which no Python runs.

It holds the level's weights, the calls, and what the reference computes and what a search here has found.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from hmc.engine.decoding.state import Rules
from hmc.engine.native import library as c
from hmc.engine.native.level import NativeBatch, NativeLevel, _Lists
from hmc.engine.reference import OwnCaches, ReferenceLevel, Source

MAIN = """
static int differs(const char *what, const void *found, const void *expected, size_t bytes) {
  if (!memcmp(found, expected, bytes)) return 0;
  printf("%s: other bits\\n", what);
  return 1;
}

int main(void) {
  if (!hmc_check()) return puts("wrong products"), 1;
  hmc_level *level;
  hmc_batch *batch;
  if (hmc_open(&program, &level)) return puts("not opened"), 1;
  if (hmc_batch_open(level, ROWS, 2, &batch)) return puts("no batch"), 1;
  if (hmc_admit(batch, COUNT, starts, sources, rules, LISTS)) return puts("not admitted"), 1;
  static float logits[COUNT * ROWS * WIDTH];
  int wrong = 0;
  for (int i = 0; i < STEPS; i++) {
    if (hmc_step(batch, (const int32_t *)tokens + i * COUNT * ROWS, logits, WIDTH, NULL, 0)) return puts("no step"), 1;
    wrong |= differs("step", logits, (const float *)expected + (size_t)i * COUNT * ROWS * WIDTH, sizeof logits);
  }
  hmc_batch_close(batch);
  if (hmc_batch_open(level, ROWS, 1, &batch)) return puts("no batch"), 1;
  if (hmc_admit(batch, 1, starts, sources, rules, LISTS)) return puts("not admitted"), 1;
  int32_t ended[2] = {0}, place, failed;
  while (!ended[0] && hmc_run(batch, 4, 0, 1, ended) > 0) {}
  double ranks[ROWS];
  float scores[LIMIT * ROWS];
  int32_t lengths[ROWS], complete[ROWS], written[LIMIT * ROWS];
  if (hmc_collect(batch, ROWS, LIMIT * ROWS, &place, &failed, ranks, lengths, complete, written, scores) != 1 || failed)
    return puts("not collected"), 1;
  wrong |= differs("ranks", ranks, found_ranks, sizeof found_ranks);
  wrong |= differs("lengths", lengths, found_lengths, sizeof found_lengths);
  wrong |= differs("complete", complete, found_complete, sizeof found_complete);
  wrong |= differs("tokens", written, found_tokens, sizeof found_tokens);
  wrong |= differs("scores", scores, found_scores, sizeof found_scores);
  if (!wrong) puts("same");
  return wrong;
}
"""


class CProgram:
    """The source of a program for one level."""

    def __init__(
        self,
        level: ReferenceLevel,
        native: NativeLevel,
        sources: Sequence[Sequence[int]],
        lists: Sequence[np.ndarray],
        rows: int,
    ) -> None:
        """native: the same level on this machine."""
        self.lines = ["#include <stdio.h>", "#include <string.h>", '#include "native.h"']
        self._names: dict[int, str] = {}
        self._program(level, native)
        rule = Rules(20, length_penalty=0.7)
        tokens, logits = _steps(level, sources, lists, rows)
        batch = NativeBatch(native, rows)
        batch.admit(sources[:1], [rule], lists[:1])
        while not batch.ended:
            batch.run(4)
        found = batch.collect(rows)
        self._array("expected", logits)
        self._array("tokens", tokens)
        self._lists("sources", "starts", sources)
        if lists:
            self._lists("listed", "list_starts", lists)
        self._array("found_ranks", np.array(found.ranks))
        self._array("found_lengths", np.array(found.lengths, np.int32))
        self._array("found_complete", np.array(found.complete, np.int32))
        self._array("found_tokens", np.array(found.tokens, np.int32))
        self._array("found_scores", np.array(found.scores, np.float32))
        self._array("penalties", np.array([max(n, 1) ** rule.length_penalty for n in range(rule.limit + 1)]))
        one = f"{{{rule.limit}, {rule.min_length}, 0, (const double *)penalties}}"
        self.lines.append(f"static const hmc_rules rules[] = {{{', '.join([one] * len(sources))}}};")
        sizes = {
            "ROWS": rows, "COUNT": len(sources), "STEPS": len(tokens), "WIDTH": logits.shape[-1],
            "LIMIT": rule.limit + 1, "LISTS": "list_starts, listed" if lists else "NULL, NULL",
        }  # fmt: skip
        self.lines += [f"#define {name} {value}" for name, value in sizes.items()]

    def __str__(self) -> str:
        return "\n".join(self.lines) + MAIN

    def _program(self, level: ReferenceLevel, native: NativeLevel) -> None:
        lists, arch = _Lists(level.program, level.arch, level.tensors), level.arch
        for number, array in enumerate([*lists.read, *lists.kept]):
            if isinstance(array, np.ndarray):
                self._names[array.ctypes.data] = self._array(f"weight{number}", array)
        for name, operations in (("encode", lists.encode), ("step", lists.step)):
            entries = []
            for number, operation in enumerate(operations):
                matrices = f"{name}_matrices{number}"
                if operation.matrices:
                    each = ", ".join(self._struct(operation.matrix[m]) for m in range(operation.matrices))
                    self.lines.append(f"static const hmc_matrix {matrices}[] = {{{each}}};")
                entries.append(self._struct(operation, matrices if operation.matrices else "NULL"))
            self.lines.append(f"static const hmc_operation {name}[] = {{{', '.join(entries)}}};")
        self._array("widths", np.array(lists.widths, np.int32))
        numbers = (
            arch.vocab_size, arch.max_positions, arch.source_size, arch.pad_id, arch.eos_id, arch.decoder_start,
            int(native.listed), len(lists.widths), "(const int32_t *)widths", len(lists.encode), len(lists.step),
        )  # fmt: skip
        self.lines.append(f"static const hmc_program program = {{{', '.join(map(str, numbers))}, encode, step}};")

    def _struct(self, struct: ctypes.Structure, matrices: str = "NULL") -> str:
        """The initialiser of a structure."""
        values = []
        for field in struct._fields_:
            name, kind, value = field[0], field[1], getattr(struct, field[0])
            if isinstance(value, ctypes.Structure):
                values.append(self._struct(value))
            elif kind is ctypes.POINTER(c.MatrixStruct):
                values.append(matrices)
            elif kind is ctypes.c_void_p:
                values.append(f"(const void *){self._names[value]}" if value else "NULL")
            else:
                values.append(f"{value.hex()}f" if kind is ctypes.c_float else str(value))
            assert name
        return f"{{{', '.join(values)}}}"

    def _array(self, name: str, array: np.ndarray) -> str:
        """Declares the bits of an array, and returns its name."""
        size = array.dtype.itemsize * 8
        bits = np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}").tolist()
        suffix = "u" if size < 64 else "ull"
        numbers = ", ".join(f"{number}{suffix}" for number in bits)
        self.lines.append(f"static const uint{size}_t {name}[] = {{{numbers}}};")
        return name

    def _lists(self, name: str, starts: str, lists: Sequence[Sequence[int] | np.ndarray]) -> None:
        joined = np.concatenate([np.asarray(each) for each in lists]).tolist()
        ends = np.cumsum([0, *map(len, lists)]).tolist()
        for array, numbers in ((name, joined), (starts, ends)):
            self.lines.append(f"static const int32_t {array}[] = {{{', '.join(map(str, numbers))}}};")


def _steps(
    level: ReferenceLevel, sources: Sequence[Sequence[int]], lists: Sequence[np.ndarray], rows: int
) -> tuple[Any, Any]:
    """Tokens `[T, R]` that some steps read, and the reference's logits of each `[T, R, V]`."""
    encoded, own = list[Source](), OwnCaches()
    for index, source in enumerate(sources):
        encoded += [level.encode(source, lists[index] if lists else None)] * rows
    tokens = np.array([[(level.arch.decoder_start + 7 * t + 3 * r * t) % 100 for r in range(len(encoded))]
                       for t in range(19)], np.int32)  # fmt: skip
    found = [
        level.step(read.astype(np.int64), np.full(len(encoded), position), own, encoded).logits
        for position, read in enumerate(tokens)
    ]
    return tokens, np.stack(found)
