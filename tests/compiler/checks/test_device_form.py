"""Levels in device form are run as they were written, and graphs that write caches wrongly are noticed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.bundles import bundle_at
from tests.once import Once
from tests.tiny import random_layout, tiny_architecture, tiny_checkpoint_at

from hmc.artifact import HeadLayout, InvalidRequestError, Precision, read_manifest
from hmc.artifact.bundle.manifest import SEARCH_VARIANTS, VARIANTS, decoder_path, encoder_path
from hmc.artifact.model.heads import KINDS
from hmc.compiler import BrokenGraphError, LevelRequest, compile_bundle
from hmc.compiler.checks.runs import check_runs

PROBE = [[5, 6, 7, 2], [8, 9, 2]]
ARCH = tiny_architecture()
ONE: dict[str, list[list[int]]] = {"encoder_self": [[], []], "decoder_self": [[], []], "cross": [[], [1]]}
LAYOUTS = {
    "full": ARCH.full_layout(),
    "uneven": random_layout(ARCH, 5),
    "one": HeadLayout.from_json(ONE),
    **{
        f"no {kind} but one" if kind == "cross" else f"no {kind}": HeadLayout.from_json(
            ARCH.full_layout().to_json() | {kind: ONE[kind]}
        )
        for kind in KINDS
    },
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_a_level_in_device_form_runs(tmp_path: Path, precision: Precision, layout: str) -> None:
    tiny_checkpoint_at(tmp_path / "c", layout=LAYOUTS[layout], gates=False)
    manifest = compile_bundle([LevelRequest(tmp_path / "c")], tmp_path / "b", precisions=(precision,), device_form=True)
    level = manifest.levels[0]
    assert {decoder_path(level.name, name) for name in (None, *VARIANTS, *SEARCH_VARIANTS)} < level.files.keys()


@pytest.fixture(scope="module")
def compiled(tiny_checkpoint: Path, once: Once) -> Path:
    return once(bundle_at, tiny_checkpoint, device_form=True)


def one_slot(graph: onnx.GraphProto) -> None:
    """Writes every sentence to slot 0."""
    zero = onnx.numpy_helper.from_array(np.asarray(0, np.int64), "no_slot")
    graph.initializer.append(zero)
    graph.node.insert(0, onnx.helper.make_node("Mul", ["slots", "no_slot"], ["zeros"]))
    for node in graph.node:
        if node.op_type == "ScatterND":
            node.input[1] = "zeros"


def filled_with_ones(graph: onnx.GraphProto) -> None:
    """Fills new positions with 1."""
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            node.attribute[0].t.CopyFrom(onnx.numpy_helper.from_array(np.ones(1, np.float32)))


@pytest.mark.parametrize(
    ("path", "change", "problem"),
    [
        (encoder_path("full"), one_slot, "encoder: next_cross_key_0 depends on the slots .* changes slots of other"),
        (encoder_path("full"), filled_with_ones, "encoder: next_cross_value_1 is not 0 after the sentences"),
    ],
)
def test_a_graph_that_writes_caches_wrongly_is_noticed(
    compiled: Path, tmp_path: Path, path: str, change: Callable[[onnx.GraphProto], None], problem: str
) -> None:
    bundle = Path(shutil.copytree(compiled, tmp_path / "b"))
    manifest = read_manifest(bundle)
    check_runs(manifest.architecture, manifest.levels[0], bundle, PROBE)
    model = onnx.load(str(bundle / path), load_external_data=False)
    change(model.graph)
    (bundle / path).write_bytes(model.SerializeToString())
    with pytest.raises(BrokenGraphError, match=problem):
        check_runs(manifest.architecture, manifest.levels[0], bundle, PROBE)


def test_levels_for_a_cpu_are_in_host_form(tiny_checkpoint: Path, compiled: Path, tmp_path: Path) -> None:
    """Nothing of device form is in them, and no graph is shared with it."""
    request = LevelRequest(tiny_checkpoint)
    levels = [
        compile_bundle([request], tmp_path / name, device_form=form).levels[0]
        for name, form in (("default", None), ("host", False))
    ]
    assert levels[0].files == levels[1].files
    graphs = {path for path in levels[0].files if path.endswith(".onnx")}
    assert graphs == {encoder_path("full"), *(decoder_path("full", name) for name in (None, *VARIANTS))}
    device = read_manifest(compiled).levels[0].files
    assert graphs < device.keys()
    assert all(device[path] != levels[0].files[path] for path in graphs)


@pytest.mark.parametrize(
    ("precision", "device_form", "message"),
    [
        ("int8", True, "device form are for floats without shortlists: leave int8 out"),
        ("fp16", False, "fp16 levels run on CUDA, which runs only graphs in device form"),
    ],
)
def test_forms_that_do_not_exist_are_refused(
    tiny_checkpoint: Path, tmp_path: Path, precision: Precision, device_form: bool, message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        compile_bundle(
            [LevelRequest(tiny_checkpoint)],
            tmp_path / "b",
            precisions=(precision,),
            calibration=["A dog runs."],
            device_form=device_form,
        )
