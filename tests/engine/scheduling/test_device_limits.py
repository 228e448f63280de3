"""Levels in device form at their limits: models of few positions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.engine.scheduling.test_device_search import bits, decode, engine_of
from tests.serving.fakes import GUARD_S
from tests.tiny import tiny_architecture, tiny_checkpoint_at

from hmc.compiler import LevelRequest, compile_bundle
from hmc.engine.decoding.constraints import Constraints
from hmc.serving import DecodeOptions

ARCH = tiny_architecture(max_positions=40)


def both_forms(path: Path) -> tuple[Path, Path]:
    """Bundles of the same random model for devices and for CPUs."""
    tiny_checkpoint_at(path / "checkpoint", arch=ARCH)
    for name in ("device", "cpu"):
        compile_bundle([LevelRequest(path / "checkpoint")], path / name, device_form=name == "device")
    return path / "device", path / "cpu"


def sentences(lengths: Sequence[int]) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [[*rng.integers(3, 120, length - 1).tolist(), ARCH.eos_id] for length in lengths]


@pytest.mark.parametrize("beam", [1, 4])
def test_sentences_of_all_positions_of_a_model(beam: int, tmp_path: Path) -> None:
    """The rooms of caches are rounded up, but the model has no embedding for the positions that this adds."""
    requests = [(source, DecodeOptions(beam_size=beam)) for source in sentences([40, 33, 39, 2, 40])]
    engines = [engine_of(path, level="full") for path in both_forms(tmp_path)]
    engines[0].warm_up()
    found, expected = (decode(engine, requests) for engine in engines)
    progress = [engines[0].submit(*request, Constraints(), print) for request in requests]
    on_host = [future.result(GUARD_S).hypotheses for future in progress]
    for engine in engines:
        engine.close()
    assert [bits(each) for each in found] == [bits(each) for each in on_host]
    assert [h[0].ids for h in found] == [h[0].ids for h in expected]
    assert max(len(h[0].ids) for h in found) == ARCH.max_positions - 1
