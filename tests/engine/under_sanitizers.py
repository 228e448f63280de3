"""Uses every function of a library of the native executor, for a build with sanitizers.

python -m tests.engine.under_sanitizers LIBRARY
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from tests.engine.test_reference import SOURCES, reference, tiny
from tests.tiny import random_layout, tiny_architecture

from hmc.compiler.calibration.calibrate import calibrate
from hmc.compiler.precisions.int8 import Int8Linears
from hmc.compiler.precisions.linears import FloatLinears, Linears
from hmc.engine.decoding.state import Rules
from hmc.engine.native.level import NativeBatch, NativeLevel
from hmc.engine.native.library import load

CALIBRATION = [[5, 9, 40, 7, 0], [11, 12, 60, 0], [90, 3, 61, 17, 28, 99, 0]]


def used(level: NativeLevel) -> None:
    """Sentences join, are searched for by both sides, move and leave."""
    size = level.arch.vocab_size
    lists = [np.arange(0, size, 2), np.arange(size), np.array([0, 5, 9])] if level.listed else []
    for rows, threads in ((1, 1), (3, 3)):
        batch = NativeBatch(level, rows, threads)
        batch.admit(SOURCES, [Rules(40, min_length=30, enough=3)] * 3, lists)
        batch.run(20)
        batch.admit(SOURCES[:1] * 3, [Rules(2), Rules(4), Rules(4)], lists[:1] * 3)
        batch.run(9, wait_steps=9, many=2)
        batch.collect(rows)
        batch.run(2)
        batch.admit(SOURCES[:1] * 9, [Rules(9)] * 9, lists[:1] * 9)
        batch.collect(rows)
        left = NativeBatch(level, rows, threads)
        left.admit(SOURCES, [Rules(3)] * 3, lists)
        left.run(9, wait_steps=9, many=9)
        left.close()  # with what has ended and was not collected
        level.rank(np.zeros((3, 101), np.float32), 101)
        level.exp(np.zeros(21, np.float32))
        batch.keep([2, 0])
        for _ in range(5):
            batch.step(np.full(2 * rows, 7), attention=True)
            batch.reorder(np.array([rows * (row // rows) for row in range(2 * rows)]))
        try:
            batch.admit([[10**6]], [Rules(5)], lists[:1])
        except ValueError:
            batch.close()


def main() -> None:
    """Opens levels of several shapes in integers and floats."""
    native = load(Path(sys.argv[1]))
    for head_dim, seed in ((8, None), (3, 3), (16, 5)):
        arch = tiny_architecture(head_dim=head_dim)
        model = tiny(arch.full_layout() if seed is None else random_layout(arch, seed), arch=arch)
        every: tuple[Linears, ...] = (FloatLinears(), Int8Linears(calibrate(model, CALIBRATION).ranges))
        for linears in every:
            level = reference(model, linears)
            for listed in (False, True):
                used(NativeLevel(native, level.program, level.arch, level.tensors, listed=listed))
    print("done")


if __name__ == "__main__":
    main()
