"""What ONNX Runtime's CUDA provider refuses: graphs, requests, and operators that it leaves to the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from experiments.support.counting.parts import every_kind
from experiments.support.counting.process import Process, Task
from experiments.support.counting.steps import answering
from experiments.support.counting.watching import CUDA
from experiments.support.counting.workload import open_level, queue_at_once, random_source
from hmc.serving.requests.options import DecodeOptions

CPU = "CPUExecutionProvider"
OF_SHAPES = {"Shape", "Concat", "Div", "Slice", "Gather", "Squeeze", "Unsqueeze", "Cast", "Range"}
"""Operators on shapes, which may run on the host."""


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
    """Kinds of operators of a graph that do not run on CUDA, without those that work on shapes."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(bundle.absolute()))
    session = onnxruntime.InferenceSession((bundle / graph).read_bytes(), options, providers=[CUDA, CPU])
    parts = (part for part in session.get_provider_graph_assignment_info() if part.ep_name != CUDA)
    return {node.op_type for part in parts for node in part.get_nodes()} - OF_SHAPES
