"""Derived arrays are made once, and live no longer than the arrays that they were made from."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.tiny import SENTENCES

from hmc.compiler import LevelRequest, compile_bundle
from hmc.compiler.derived import DerivedArrays, stack
from hmc.compiler.precisions import int4, int8


def doubled(array: npt.NDArray[Any], times: int = 2) -> npt.NDArray[Any]:
    return array * times


def test_the_same_arrays_give_the_same_result() -> None:
    derived, one = DerivedArrays(), np.ones(3)
    assert derived.get(doubled, one) is derived.get(doubled, one)
    assert derived.get(doubled, one, times=3)[0] == 3
    assert derived.get(doubled, np.ones(3)) is not derived.get(doubled, one)
    assert derived.get(stack, one, one).shape == (6,)


def test_a_single_array_is_not_copied() -> None:
    one = np.ones(3)
    assert DerivedArrays().get(stack, one) is one


def test_what_was_made_goes_with_what_it_was_made_from() -> None:
    derived, one, other = DerivedArrays(), np.ones(3), np.ones(3)
    stacked = weakref.ref(derived.get(stack, one, other))
    twice = weakref.ref(derived.get(doubled, derived.get(stack, one, other)))
    gc.collect()
    assert stacked() is not None
    assert twice() is not None
    del other
    gc.collect()
    assert stacked() is None
    assert twice() is None


def test_a_weight_is_quantised_once_for_all_decoders_and_levels(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Levels share feed-forward layers and the embedding. Attention layers with removed heads are new arrays."""
    quantised: Counter[tuple[str, bytes]] = Counter()
    for module, name in ((int8, "quantize_columns"), (int4, "quantize_blocks")):
        original = getattr(module, name)

        def counted(weight: npt.NDArray[Any], *, name: str = name, original: Any = original) -> Any:
            quantised[name, weight.tobytes()] += 1
            return original(weight)

        monkeypatch.setattr(module, name, counted)
    requests = [LevelRequest(tiny_checkpoint, heads) for heads in (24, 12)]
    compile_bundle(requests, tmp_path / "b", precisions=("int8", "int4"), calibration=SENTENCES)
    assert len(quantised) > 30
    assert set(quantised.values()) == {1}
