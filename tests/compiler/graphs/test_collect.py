"""collect.onnx under ONNX Runtime: what it returns of some sentences is what the arrays hold."""

from __future__ import annotations

import numpy as np
import onnxruntime

from hmc.compiler.graphs.search.graphs import COLLECTED, ENDED, HISTORY, author_collect
from hmc.compiler.serialize import in_memory


def test_some_sentences_and_the_first_steps_of_their_history() -> None:
    rng = np.random.default_rng(0)
    count, positions, k = 5, 9, 3
    arrays = {f"ended_{n}": (9 * rng.random((count, k))).astype(t) for n, t in ENDED.items()}
    arrays |= {f"history_{n}": (9 * rng.random((count, positions, k))).astype(t) for n, t in HISTORY.items()}
    slots, steps = np.array([3, 0, 3], np.int64), np.array([4], np.int64)
    session = onnxruntime.InferenceSession(in_memory(author_collect().model({})).graph)
    names = list(COLLECTED.values())
    found = dict(zip(names, session.run(names, arrays | {"slots": slots, "steps": steps}), strict=True))
    for dtype, output in COLLECTED.items():
        parts = [arrays[f"ended_{n}"][slots] for n, t in ENDED.items() if t == dtype]
        parts += [arrays[f"history_{n}"][slots, :4].reshape(3, -1) for n, t in HISTORY.items() if t == dtype]
        np.testing.assert_array_equal(found[output], np.concatenate(parts, axis=1))
        assert found[output].dtype == dtype
