"""The greedy decoder gives the scores of the plain one, whichever of its layers are in 8 bits."""

from __future__ import annotations

import numpy as np
import pytest
from tests.tiny import random_layout, random_tensors, tiny_architecture

from hmc.artifact import HeadLayout
from hmc.artifact.checkpoint.slimming import slim_tensors
from hmc.compiler.calibration.calibrate import calibrate
from hmc.compiler.checks.runner import GraphRunner
from hmc.compiler.checks.session import OpenGraph
from hmc.compiler.graphs.attention import states_by_row
from hmc.compiler.graphs.decoder import author_decoder
from hmc.compiler.precisions.int4 import Int4Linears
from hmc.compiler.precisions.int8 import Int8Linears
from hmc.compiler.precisions.linears import FloatLinears, Linears
from hmc.compiler.weights import SlimModel

ARCH = tiny_architecture()
FULL = ARCH.full_layout()
SELF, CROSS = "decoder.layers.1.self_attn", "decoder.layers.0.encoder_attn"
KEPT = {
    "nothing": (),
    "a linear": ("decoder.layers.0.fc1",),
    "self-attention": (f"{SELF}.query", f"{SELF}.key", f"{SELF}.value"),
    "cross-attention": (f"{CROSS}.query", f"{CROSS}.key", f"{CROSS}.value"),
}
"""What stays in fp32."""


def sentences(seed: int) -> list[list[int]]:
    """Sentences of different lengths, one of them with a single token; ids with EOS."""
    rng = np.random.default_rng(seed)
    return [[*rng.integers(3, ARCH.vocab_size, n).tolist(), ARCH.eos_id] for n in (0, 1, 4, 9, 14, 2)]


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("linears", [Int8Linears, Int4Linears])
@pytest.mark.parametrize("layout", [FULL, random_layout(ARCH, 5)], ids=["full", "some"])
def test_scores_are_those_of_the_tree(kept: str, linears: type[Int8Linears], layout: HeadLayout) -> None:
    tensors = slim_tensors(random_tensors(ARCH, FULL), ARCH, FULL, layout)
    ranges = calibrate(SlimModel(ARCH, layout, tensors), sentences(1)).ranges
    chosen = linears({name: found for name, found in ranges.items() if name not in KEPT[kept]})
    greedy = author_decoder(ARCH, layout, tensors, chosen, variant="greedy")
    assert states_by_row(ARCH, layout, tensors, chosen) == (kept == "nothing")
    tree = GraphRunner.author(ARCH, layout, tensors, chosen)
    rows = GraphRunner(ARCH, layout, tree.encoder, OpenGraph.from_model(greedy.model({})))
    targets = [list(range(3, 3 + n)) for n in (5, 1, 7, 3, 6, 2)]
    found, expected = (runner.log_probs(sentences(2), targets) for runner in (rows, tree))
    for row, target in enumerate(targets):
        real = slice(len(target))
        assert np.abs(np.exp(found[row, real]) - np.exp(expected[row, real])).max() < 0.02


@pytest.mark.parametrize("linears", [FloatLinears(), Int8Linears({})])
def test_fp32_has_states_without_rows(linears: Linears) -> None:
    assert not states_by_row(ARCH, FULL, random_tensors(ARCH, FULL), linears)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    tensors = random_tensors(ARCH, FULL)
    linears = Int8Linears(calibrate(SlimModel(ARCH, FULL, tensors), sentences(1)).ranges)
    runner = GraphRunner.author(ARCH, FULL, tensors, linears)
    greedy = author_decoder(ARCH, FULL, tensors, linears, variant="greedy")
    runner.decoder = OpenGraph.from_model(greedy.model({}))
    targets = [list(range(3, 9))] * 6
    together = runner.log_probs(sentences(2), targets)
    for row, sentence in enumerate(sentences(2)):
        assert np.array_equal(runner.log_probs([sentence], targets[:1])[0], together[row])
