"""The number of nodes of each graph: every node is paid for at every step, so one that is added must be worth it.

A change that takes nodes away lowers the number here. A run with `-s` prints them all.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from hmc.artifact.bundle.manifest import decoder_path, encoder_path

COUNTS = {
    "full": {"encoder": 53, "decoder": 67, "greedy": 56, "attention": 95, "sampling": 92},
    "full-int8": {"encoder": 73, "decoder": 119, "greedy": 64, "attention": 128, "sampling": 144},
}
"""Level of the tiny model (2 + 2 layers, all heads) → graph → nodes."""


@pytest.mark.parametrize("level", COUNTS)
def test_no_graph_has_more_nodes(level: str, tiny_bundle: Path) -> None:
    paths = {"encoder": encoder_path(level), "decoder": decoder_path(level, None)}
    paths |= {"greedy": decoder_path(level, "greedy"), "attention": decoder_path(level, "attention")}
    paths |= {"sampling": decoder_path(level, "sampling")}
    found = {
        name: len(onnx.load(tiny_bundle / path, load_external_data=False).graph.node) for name, path in paths.items()
    }
    print(f"{level}: {found}")
    assert found == COUNTS[level], "fewer is better: if that is so, write the new numbers down here"
