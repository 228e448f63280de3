"""Proves that a graph may write outputs onto the memory of its inputs.

A server binds `next_X` onto the memory of `X`, and `present_X` onto that of `past_X`. Operators run in any order that
their inputs allow. So a pair is safe if every reader of the input has run before the node that writes the output, or is
that node and reads each element before it writes it.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from hmc.artifact.errors import HmcError

PAIRS = (("next_", ""), ("present_", "past_"))
"""Prefix of an output → prefix of the input whose memory it gets."""
VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})
"""ONNX Runtime gives their results the memory of their first input."""
SIZES = frozenset({"Shape", "Size"})
"""They read no element."""
ELEMENTWISE = frozenset({"Add", "Sub", "Mul", "Div", "Max", "Min", "Where", "Cast", "Neg"})
"""They write an element after they have read it, if the input has the shape of the output."""
IN_PLACE = {"ScatterND": (0,), "ScatterElements": (0,), "GroupQueryAttention": (3, 4)}
"""Operators that take given inputs in the memory of their outputs."""


class UnsafeGraphError(HmcError):
    """A graph writes an output onto memory that it may still read: a defect of the compiler."""


def check_in_place(model: ir.Model, name: str) -> None:
    """Raises UnsafeGraphError, which names every unsafe pair of `model`. name: what messages call the graph."""
    problems: list[str] = []
    for output, reused in pairs(model.graph):
        problems += _problems(output, reused)
    if problems:
        raise UnsafeGraphError(f"{name}: {'; '.join(problems)}; this is a defect of the compiler, please report it")


def pairs(graph: ir.Graph) -> Iterator[tuple[ir.Value, ir.Value]]:
    """The outputs that get the memory of an input, with these inputs."""
    inputs = {value.name: value for value in graph.inputs}
    for output in graph.outputs:
        for prefix, of in PAIRS:
            name = output.name or ""
            if name.startswith(prefix) and (reused := inputs.get(of + name.removeprefix(prefix))) is not None:
                yield output, reused


def _problems(output: ir.Value, reused: ir.Value) -> Iterator[str]:
    writer = output.producer()
    if writer is None:
        if output is not reused:
            yield f"{output.name} is no result of the graph"
        return
    before = _ancestors(writer)
    for reader, value, index in _readers(reused):
        if reader in before or (reader is writer and _reads_first(writer, index, value, output)):
            continue
        yield (
            f"{output.name} would be written by {writer.name} ({writer.op_type}) onto {reused.name} while "
            f"{reader.name} ({reader.op_type}) may still read it"
        )


def _readers(value: ir.Value) -> Iterator[tuple[ir.Node, ir.Value, int]]:
    """The nodes that read elements of a value or of its views, with the value or view and its place among inputs."""
    for node, index in value.uses():
        if node.op_type in SIZES:
            continue
        if node.op_type in VIEWS:
            if index == 0:
                yield from _readers(node.outputs[0])
                if node.outputs[0].is_graph_output():
                    yield node, value, index
            continue
        yield node, value, index


def _reads_first(writer: ir.Node, index: int, value: ir.Value, output: ir.Value) -> bool:
    """Whether the node that writes `output` may read `value`, its input `index`, from the same memory."""
    if writer.op_type in IN_PLACE:
        allowed = IN_PLACE[writer.op_type]
        return index == (allowed[0] if len(allowed) == 1 else allowed[list(writer.outputs).index(output) - 1])
    return writer.op_type in ELEMENTWISE and value.shape is not None and value.shape == output.shape


def _ancestors(node: ir.Node) -> set[ir.Node]:
    """All nodes that have run before `node`."""
    ancestors: set[ir.Node] = set()
    waiting = [node]
    while waiting:
        for value in waiting.pop().inputs:
            producer = value.producer() if value is not None else None
            if producer is not None and producer not in ancestors:
                ancestors.add(producer)
                waiting.append(producer)
    return ancestors
