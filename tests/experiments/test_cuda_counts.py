"""What HMC asks of CUDA, counted over stand-in libraries that compute nothing. Counts only: no time is compared."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import onnx
import pytest
from experiments.support.counting.child import fresh
from experiments.support.counting.libraries import environment_with
from experiments.support.counting.process import Task
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import NodeProto, TensorProto, helper
from tests.experiments.conftest import Experiment
from tests.support.trained import CHECKPOINT
from tests.tiny import random_layout, tiny_architecture, tiny_checkpoint_at

from hmc.artifact import validate
from hmc.artifact.model.architecture import Activation
from hmc.compiler import LevelRequest, compile_bundle

pytestmark = [pytest.mark.slow, pytest.mark.cuda_counts, pytest.mark.usefixtures("counting_libraries")]


def task(bundle: Path, part: str, **values: object) -> Task:
    """A task on the levels of a bundle that are for CUDA."""
    levels = tuple(level.name for level in validate(bundle).levels if level.on_cuda)
    return Task(part=part, bundle=str(bundle), levels=levels, provider={}).but(**values)


def test_one_command_prints_and_reports_every_part(
    experiment: Experiment, embedded_on_cuda: Path, counting_libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps with captured graphs and without are counted by the next test: here they are those that are served."""
    answers = list[dict[str, Any]]()

    def measured(task: Task, libraries: Path) -> dict[str, Any]:
        if task.part != "steps" or list(task.provider) != ["enable_cuda_graph"]:
            answers.append(fresh(task, libraries))
            return answers[-1]
        return answers[0]

    monkeypatch.setattr("experiments.support.counting.child.fresh", measured)
    ran = experiment(
        "cuda_counts", embedded_on_cuda, "--libraries", counting_libraries, "--settings", "3x1,2x4,2x4+prefix",
        "--queued", "40", "--sentences", "60", "--rows", "16",
    )  # fmt: skip
    assert ran.status == 0, ran.output
    ways = {"served", "uncaptured", "captured", "cudnn"}
    assert set(ran.report["steps"]) == ways
    for way in ways:
        assert set(ran.report["steps"][way]) == {"3x1", "2x4", "2x4+prefix"}
        assert all(row["python_us"]["median"] > 0 for row in ran.report["steps"][way].values())
    assert ran.report["levels"] == ["full-fp16", "h36-fp16"]
    assert {beam: row["sentences"] for beam, row in ran.report["encoder"].items()} == {"1": 40, "4": 40}
    assert list(ran.report["natural"])[:3] == ["before", "loaded", "warm"]
    assert ran.report["natural"]["60"]["device_bytes"] > 0
    assert ran.report["memory"]["opened"] > ran.report["memory"]["weights"] > 0
    assert set(ran.report["long"]) == {"3x1", "2x4"}
    assert "launches" in ran.output


def test_a_captured_step_is_one_launch(embedded_on_cuda: Path, counting_libraries: Path) -> None:
    chosen = task(embedded_on_cuda, "steps", settings=("4x1", "4x4"))
    captured = fresh(chosen.but(provider={"enable_cuda_graph": "1"}), counting_libraries)
    assert {name: row["middle"]["launches"] for name, row in captured.items()} == {"4x1": 1, "4x4": 1}
    apart = fresh(chosen.but(provider={"enable_cuda_graph": "0"}), counting_libraries)
    assert all(row["middle"]["launches"] > 50 for row in apart.values())


@pytest.mark.parametrize("beam", [1, 4])
def test_sentences_that_are_queued_together_are_encoded_together(
    embedded_on_cuda: Path, counting_libraries: Path, beam: int
) -> None:
    """One by one as slots become free, beam 4 took 128 calls."""
    found = fresh(task(embedded_on_cuda, "encoder", beam=beam, sentences=1500, rows=128), counting_libraries)
    assert found["sentences"] == 1500
    assert 1500 / found["encoder_calls"] >= 25  # at most 60 calls


def graph_at(path: Path, elements: int, *nodes: NodeProto) -> None:
    """Writes a graph with an input x `[N, 2]` and an output y, both of one element type."""
    given = helper.make_tensor_value_info("x", elements, ["N", 2])
    graph = helper.make_graph(nodes, "g", [given], [helper.make_tensor_value_info("y", elements, None)])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)


def test_operators_that_run_on_the_host_are_found(tmp_path: Path, counting_libraries: Path) -> None:
    """Otherwise `test_nothing_is_refused` could not fail. CUDA has no Unique. ONNX Runtime leaves both Adds to the host
    for their operands, which are shapes in one graph, and in the other one also what the graph is given."""
    node = helper.make_node
    shape = node("Shape", ["x"], ["shape"])
    of_shapes = node("Add", ["shape", "shape"], ["double"], name="of_shapes")
    graph_at(tmp_path / "unique.onnx", TensorProto.FLOAT, node("Unique", ["x"], ["y"]))
    graph_at(tmp_path / "shapes.onnx", TensorProto.FLOAT, shape, of_shapes, node("ConstantOfShape", ["double"], ["y"]))
    graph_at(tmp_path / "data.onnx", TensorProto.INT64, shape, node("Add", ["x", "shape"], ["y"], name="of_data"))
    code = (
        "import json, sys; from pathlib import Path\n"
        "from experiments.support.counting.refusals import host_operators\n"
        "folder = Path(sys.argv[1])\n"
        "print(json.dumps({path.stem: sorted(host_operators(folder, path.name)) for path in folder.glob('*.onnx')}))"
    )
    environment = {**environment_with(counting_libraries), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True, env=environment
    )
    assert json.loads(ran.stdout.splitlines()[-1]) == {"unique": ["Unique"], "shapes": [], "data": ["Add"]}


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10_000), activation=st.sampled_from(get_args(Activation)), scaled=st.booleans(),
    head_dim=st.sampled_from((4, 8, 12, 16, 24, 40, 64, 72, 96, 128, 160, 256, 264)),
)  # fmt: skip
def test_nothing_is_refused(
    tmp_path_factory: pytest.TempPathFactory, counting_libraries: Path, seed: int, activation: str, scaled: bool,
    head_dim: int,
) -> None:  # fmt: skip
    """Random layouts, head sizes and activations: every graph opens, every kind of request is answered, and all
    operators but those on shapes run on the device."""
    folder = tmp_path_factory.mktemp("refusals")
    arch = tiny_architecture(activation=activation, head_dim=head_dim, scale_embedding=scaled)
    tiny_checkpoint_at(folder / "checkpoint", arch=arch, layout=random_layout(arch, seed), seed=seed, gates=False)
    compile_bundle([LevelRequest(folder / "checkpoint")], folder / "bundle", precisions=("fp16", "bf16"))
    found = fresh(task(folder / "bundle", "refusals"), counting_libraries)
    assert len(found) == 2
    assert all(row == {"errors": [], "on_host": {}} for row in found.values()), found


def test_the_comparison_of_speeds_runs_to_its_end(
    experiment: Experiment, counting_libraries: Path, tmp_path: Path
) -> None:
    shutil.copytree(CHECKPOINT, tmp_path / "out" / "checkpoint")
    ran = experiment(
        "cuda_speed", "--out", tmp_path / "out", "--libraries", counting_libraries, "--settings", "1x1,2x4",
        "--rounds", "1", "--stream", "2", "--precisions", "fp16",
    )  # fmt: skip
    assert ran.status == 0, ran.output
    assert set(ran.report["settings"]) == {"1x1", "2x4"}
    assert set(ran.report["settings"]["2x4"]) == {"hmc full-fp16", "hmc h36-fp16"}
