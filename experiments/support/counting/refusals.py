"""What ONNX Runtime's CUDA provider refuses: graphs, requests, and operators that it leaves to the host."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
from onnx_ir.passes.common import ShapeInferencePass

from experiments.support.counting.parts import every_kind
from experiments.support.counting.process import Process, Task
from experiments.support.counting.steps import answering
from experiments.support.counting.watching import CUDA
from experiments.support.counting.workload import open_level, queue_at_once, random_source
from hmc.engine.requests.options import DecodeOptions

CPU = "CPUExecutionProvider"


def refusals(process: Process, task: Task) -> dict[str, Any]:
    """Level → what ONNX Runtime refuses of it: errors of requests, and operators that it puts on the host."""
    bundle, found = Path(task.bundle), {}
    for name in task.levels:
        errors: list[str] = []
        with open_level(bundle, name, 32) as translator:
            arch = translator.manifest.architecture
            answering(process.watch, arch, [3, 4, 5])
            host = {graph: host_operators(bundle, graph) for graph in translator.level.files if graph.endswith(".onnx")}
            for options in (*every_kind(translator.level), DecodeOptions(beam_size=3), DecodeOptions(beam_size=8)):
                for count in (1, 3):
                    sources = [random_source(arch, 5 + n, np.random.default_rng(n)) for n in range(count)]
                    failed = (future.exception() for future in queue_at_once(translator, sources, options))
                    errors += [f"{count} x {options}: {error}" for error in failed if error is not None]
        found[name] = {"errors": errors, "on_host": {graph: sorted(kinds) for graph, kinds in host.items() if kinds}}
    return found


def host_operators(bundle: Path, graph: str) -> set[str]:
    """Kinds of operators of a graph that do not run on CUDA, without arithmetic on shapes.

    ONNX Runtime leaves such arithmetic to the host deliberately, because shapes are known there.
    """
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(bundle.absolute()))
    # Operators are assigned before they are fused: nothing is fused here, so that the graph has the assigned ones.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder, "assigned.onnx"))
        session = onnxruntime.InferenceSession((bundle / graph).read_bytes(), options, providers=[CUDA, CPU])
        of_shapes = shape_arithmetic(ir.load(options.optimized_model_filepath))
    parts = (part for part in session.get_provider_graph_assignment_info() if part.ep_name != CUDA)
    nodes = (node for part in parts for node in part.get_nodes())
    return {node.op_type for node in nodes if node.name not in of_shapes}


def shape_arithmetic(model: ir.Model) -> set[str]:
    """Names of the nodes that compute whole numbers, one or a row of them, from nothing but shapes and constants."""
    known: set[ir.Value] = set()
    names: set[str] = set()
    graph = ShapeInferencePass()(model).model.graph
    for node in graph:  # a node comes after those that make its inputs
        given = [value for value in node.inputs if value is not None]
        from_shapes = node.op_type in ("Shape", "Size") or all(
            value in known or (value.is_initializer() and _whole_numbers(value)) for value in given
        )
        if from_shapes and all(map(_whole_numbers, node.outputs)):
            known.update(node.outputs)
            names |= {node.name} if node.name else set()
    return names


def _whole_numbers(value: ir.Value) -> bool:
    """Whether a value is known to be an integer or a row of integers."""
    if value.dtype is None or value.shape is None:
        return False
    return value.dtype.is_integer() and value.shape.rank() <= 1
