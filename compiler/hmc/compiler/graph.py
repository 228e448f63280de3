"""A small builder over onnx-ir: operators become values, arrays become named initializers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from hmc.artifact.element_types import ELEMENT_TYPES

MICROSOFT = "com.microsoft"
OPSET = 21
IR_VERSION = 10
DTYPES = {element_type.name: ir.DataType(element_type.number) for element_type in ELEMENT_TYPES}
"""Names of element types, as the compiler writes them → as ONNX does."""
Dims = Sequence[int | str]


def as_type(array: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    """The array in one of DTYPES; the same array if it has that type. NumPy itself has no bfloat16."""
    return array.astype(DTYPES[dtype].numpy(), copy=False)


@dataclass
class GraphBuilder:
    """Collects inputs, nodes, initializers and outputs of one graph.

    Names are deterministic: the n-th node of operator `Kind` is `Kind_n`, and so is its output.
    """

    name: str
    inputs: list[ir.Value] = field(default_factory=list)
    outputs: list[ir.Value] = field(default_factory=list)
    nodes: list[ir.Node] = field(default_factory=list)
    initializers: dict[str, ir.Value] = field(default_factory=dict)

    def input(self, name: str, dtype: str, shape: Dims) -> ir.Value:
        """Declares a graph input."""
        value = ir.Value(name=name, type=ir.TensorType(DTYPES[dtype]), shape=ir.Shape(list(shape)))
        self.inputs.append(value)
        return value

    def output(self, value: ir.Value, name: str, dtype: str, shape: Dims) -> None:
        """Declares `value` a graph output called `name`."""
        value.name = name
        value.type = ir.TensorType(DTYPES[dtype])
        value.shape = ir.Shape(list(shape))
        self.outputs.append(value)

    def weight(self, name: str, array: npt.NDArray[Any]) -> ir.Value:
        """The initializer `name`, which holds `array` itself, not a copy. Asking again returns the same value.

        Raises ValueError if the name already stands for other numbers.
        """
        if name in self.initializers:
            value = self.initializers[name]
            known = _array(value)
            if known is not array and (known.dtype != array.dtype or not np.array_equal(known, array)):
                raise ValueError(f"graph {self.name}: initializer {name!r} already exists with other numbers")
            return value
        data = np.asarray(array, order="C")
        tensor = ir.Tensor(data, name=name)
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(data.shape), const_value=tensor)
        self.initializers[name] = value
        return value

    def ints(self, *values: int) -> ir.Value:
        """A 1-D int64 constant."""
        return self.weight("const." + "_".join(map(str, values)), np.array(values, np.int64))

    def op(
        self, kind: str, inputs: Sequence[ir.Value | None], *, domain: str = "", outputs: int = 1, **attributes: Any
    ) -> Any:
        """Adds a node. Returns its output value, or a tuple of them where there are several."""
        index = len(self.nodes)
        suffixes = [""] if outputs == 1 else [f".{i}" for i in range(outputs)]
        values = [ir.Value(name=f"{kind}_{index}{suffix}") for suffix in suffixes]
        attrs = ir.convenience.convert_attributes(attributes)
        node = ir.Node(domain, kind, list(inputs), attrs, outputs=values, name=f"{kind}_{index}")
        self.nodes.append(node)
        return values[0] if outputs == 1 else tuple(values)

    def model(self, metadata: dict[str, str]) -> ir.Model:
        """The finished model. The builder cannot be used again."""
        graph = ir.Graph(
            self.inputs,
            self.outputs,
            nodes=self.nodes,
            initializers=list(self.initializers.values()),
            opset_imports={"": OPSET, MICROSOFT: 1},
            name=self.name,
        )
        return ir.Model(graph, ir_version=IR_VERSION, producer_name="hmc", metadata_props=metadata)


def _array(value: ir.Value) -> npt.NDArray[Any]:
    assert value.const_value is not None
    array: npt.NDArray[Any] = value.const_value.numpy()
    return array
