"""A decoder whose search is wrong is noticed when its level is written."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from tests.bundles import bundle_at
from tests.once import Once

from hmc.artifact import read_manifest
from hmc.artifact.bundle.manifest import decoder_path
from hmc.compiler import BrokenGraphError
from hmc.compiler.checks.runs import check_runs

PROBE = [[5, 6, 7, 2], [8, 9, 2]]
Change = Callable[[onnx.GraphProto], None]


@pytest.fixture(scope="module")
def compiled(tiny_checkpoint: Path, once: Once) -> Path:
    return once(bundle_at, tiny_checkpoint, device_form=True)


def worst_first(graph: onnx.GraphProto) -> None:
    """Ranks the worst tokens first."""
    first = next(node for node in graph.node if node.op_type == "TopK" and "candidates" in node.input)
    first.attribute.append(onnx.helper.make_attribute("largest", 0))


def exchanged(name: str) -> Change:
    """Does not reorder one part of the state."""

    def change(graph: onnx.GraphProto) -> None:
        for node in graph.node:
            if f"next_{name}" in node.output:
                node.CopyFrom(onnx.helper.make_node("Identity", [name], [f"next_{name}"]))

    return change


BROKEN: dict[str, tuple[str, Change]] = {
    "worst tokens, greedy": ("search_greedy", worst_first),
    "totals that stay, beam": ("search_beam", exchanged("totals")),
    "nodes that nobody sees, beam": ("search_beam", exchanged("node_bias")),
    "tokens that stay, greedy": ("search_greedy", exchanged("tokens")),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_wrong_search_is_noticed(compiled: Path, tmp_path: Path, case: str) -> None:
    variant, change = BROKEN[case]
    shutil.copytree(compiled, tmp_path / "b")
    manifest = read_manifest(tmp_path / "b")
    path = tmp_path / "b" / decoder_path(manifest.levels[0].name, variant)  # type: ignore[arg-type]
    model = onnx.load(path, load_external_data=False)
    change(model.graph)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(BrokenGraphError, match=f"decoder '{variant}'"):
        check_runs(manifest.architecture, manifest.levels[0], tmp_path / "b", PROBE)
