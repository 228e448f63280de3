"""fp16 and bf16 levels, which are for CUDA: the parts of their graphs that can be tested on a CPU."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from tests.tiny import tiny_checkpoint_at

from hmc.artifact import Precision, load_checkpoint, save_checkpoint, validate
from hmc.artifact.bundle.manifest import SEARCH_VARIANTS, VARIANTS
from hmc.compiler import LevelRequest, compile_bundle
from hmc.compiler.checks.runner import GraphRunner
from hmc.compiler.checks.session import OpenGraph

SOURCES = [[5, 9, 40, 17, 0], [33, 8, 0], [21, 21, 7, 99, 64, 12, 3, 0]]


def runner(bundle: Path, *, greedy: bool) -> GraphRunner:
    """The level's graphs with every bfloat16, which ONNX Runtime does not run on a CPU, widened to fp32."""
    manifest = validate(bundle)
    [level] = manifest.levels

    def widened(name: str) -> bytes:
        model = onnx.load(str(bundle / level.name / name), load_external_data=False)
        onnx.load_external_data_for_model(model, str(bundle))
        for index, tensor in enumerate(model.graph.initializer):
            if tensor.data_type == TensorProto.BFLOAT16:
                wide = numpy_helper.to_array(tensor).astype(np.float32)
                model.graph.initializer[index].CopyFrom(numpy_helper.from_array(wide, tensor.name))
        for value in (*model.graph.input, *model.graph.output):
            if value.type.tensor_type.elem_type == TensorProto.BFLOAT16:
                value.type.tensor_type.elem_type = TensorProto.FLOAT
        for node in model.graph.node:
            for attribute in node.attribute:
                if node.op_type == "Cast" and attribute.i == TensorProto.BFLOAT16:
                    attribute.i = TensorProto.FLOAT
                if attribute.t.data_type == TensorProto.BFLOAT16:
                    wide = numpy_helper.to_array(attribute.t).astype(np.float32)
                    attribute.t.CopyFrom(numpy_helper.from_array(wide))
        return bytes(model.SerializeToString())

    sessions = [OpenGraph(widened(f"{name}.onnx")) for name in ("encoder", "decoder_greedy" if greedy else "decoder")]
    encoder, decoder = sessions
    return GraphRunner(manifest.architecture, level.layout, encoder, decoder)


@pytest.mark.parametrize("greedy", [False, True])
def test_bf16_graphs_compute_the_model_with_rounded_weights(tmp_path: Path, *, greedy: bool) -> None:
    checkpoint = tiny_checkpoint_at(tmp_path / "c", seed=3)
    compile_bundle([LevelRequest(tmp_path / "c")], tmp_path / "half", precisions=("bf16",))
    for name, value in checkpoint.tensors.items():
        checkpoint.tensors[name] = value.astype(ml_dtypes.bfloat16).astype(np.float32)
    save_checkpoint(checkpoint, tmp_path / "rounded")
    compile_bundle([LevelRequest(tmp_path / "rounded")], tmp_path / "float", device_form=True)
    targets = [[5, 6, 7, 8, 0]] * len(SOURCES)
    half, whole = (runner(tmp_path / n, greedy=greedy).log_probs(SOURCES, targets) for n in ("half", "float"))
    np.testing.assert_allclose(half, whole, atol=0.04)  # what is folded is rounded after that, and positions too


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_weights_take_two_bytes_and_all_decoders_share_them(tmp_path: Path, precision: Precision) -> None:
    tiny_checkpoint_at(tmp_path / "c")
    manifest = compile_bundle([LevelRequest(tmp_path / "c")], tmp_path / "b", precisions=(precision,))
    parameters = sum(v.size for v in load_checkpoint(tmp_path / "c").tensors.values())
    weights = sum((tmp_path / "b" / name).stat().st_size for name in manifest.levels[0].files if name.endswith(".bin"))
    assert weights <= 2.5 * parameters
    variants = [f"decoder_{name}.onnx" for name in (*VARIANTS, *SEARCH_VARIANTS)]
    graphs = {Path(name).name for name in manifest.levels[0].files if name.endswith(".onnx")}
    assert graphs == {"encoder.onnx", "decoder.onnx", *variants, "collect.onnx"}
