"""A decoder with the search inside gives the same numbers whether its outputs lie on its inputs or elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from tests.compiler.graphs.search.search_run import SearchRun, open_session
from tests.tiny import random_layout, random_tensors, tiny_architecture

from hmc.artifact.bundle.manifest import SEARCH_VARIANTS, SearchVariant
from hmc.artifact.checkpoint.slimming import slim_tensors
from hmc.compiler.graphs.decoder import author_decoder
from hmc.compiler.precisions.linears import FloatLinears

ARCH = tiny_architecture()


@pytest.mark.parametrize("variant", SEARCH_VARIANTS)
def test_outputs_on_inputs_change_nothing(variant: SearchVariant) -> None:
    layout = random_layout(ARCH, 5)
    tensors = slim_tensors(random_tensors(ARCH, ARCH.full_layout()), ARCH, ARCH.full_layout(), layout)
    session = open_session(author_decoder(ARCH, layout, tensors, FloatLinears(), variant=variant, device_form=True))
    k, rng = (1 if variant == "search_greedy" else 3), np.random.default_rng(0)
    run = SearchRun(session, B=4, k=k, P=16, N=16 * k, T=16, S=5, K=2 * k + 1)
    for name in run.arrays:
        if name.startswith("cross_"):
            run.write(name, rng.normal(size=run.arrays[name].shape))
    starts = {"source_lengths": [5, 3, 4, 1], "limits": [12, 9, 5, 0], "minimums": [1, 9, 1, 0], "fresh": [1, 1, 1, 0]}
    for name, values in {**starts, "penalties": [1, 0.6, 1, 1]}.items():
        run.write(name, np.array(values))
    inputs = [given.name for given in session.get_inputs()]
    elsewhere = {
        name: run.read(name).copy() if name not in ("candidates", "total_length") else run.arrays[name]
        for name in inputs
    }
    outputs = [made.name for made in session.get_outputs()]
    for step in range(14):
        run.step()
        for name, value in zip(outputs, session.run(outputs, {n: elsewhere[n] for n in inputs}), strict=True):
            state = name.removeprefix("next_").replace("present_", "past_")
            elsewhere[state] = value
            assert np.array_equal(run.read(state), value), (step, name)
    assert run.read("done").tolist() == [1, 1, 1, 1]
    assert [len(run.ended(slot)) for slot in range(3)] == [k] * 3
