"""A program in words: a person should be able to read a model in some 40 lines, and see what pruning took.

In a program with weights of 8 bits, what stayed in floats is marked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

from hmc.artifact.model.architecture import Architecture
from hmc.artifact.program.operations import (
    AttendEncoder,
    AttendSelf,
    AttendSource,
    Embed,
    FusedLinear,
    Operation,
    Product,
    Program,
    Range,
    StoreSource,
    TopCandidates,
)

BEFORE = "…"
"""The result of the line above."""


def describe(program: Program, arch: Architecture) -> Iterator[str]:
    """The program for people, a sub-layer a line. Biases of products are left out."""
    lists = (
        ("encode, once a sentence", program.encode, arch.encoder_layers, 1),
        ("step, once a token", program.step, arch.decoder_layers, 2),
    )
    products = (operation.product for operation in program.step if isinstance(operation, FusedLinear | TopCandidates))
    quantised = any(product is not None and product.range is not None for product in products)
    for name, operations, layers, attentions in lists:
        attending = [x for x in operations if isinstance(x, AttendEncoder | AttendSelf | AttendSource)]
        open_heads = sum(attention.heads for attention in attending)
        neurons = 0
        for operation in operations:
            if isinstance(operation, FusedLinear) and operation.activation and operation.product is not None:
                neurons += operation.product.outputs
        yield (
            f"{name}: {len(operations)} operations, {open_heads} of {layers * attentions * arch.heads} heads, "
            f"{neurons} of {layers * arch.ffn_dim} neurons{', int8' if quantised else ''}"
        )
        above = ""
        for line in _lines(operations):
            label = _label(line[-1])
            yield f"  {label:<18} {' → '.join(_described(line, above, arch, quantised=quantised))}".rstrip()
            above = _output(line[-1])


def _lines(operations: Sequence[Operation]) -> Iterator[list[Operation]]:
    """Operations that go on with what the one before them computed, and add nothing to it, are on one line."""
    line: list[Operation] = []
    for operation in operations:
        goes_on = not isinstance(operation, Embed) and line and operation.input == _output(line[-1])
        if line and not goes_on:
            yield line
            line = []
        line.append(operation)
    yield line


def _output(operation: Operation) -> str:
    """The last value that an operation computes."""
    if isinstance(operation, FusedLinear):
        parts = (operation.sum, operation.norm, operation)
        return next((part.output for part in reversed(parts) if part is not None and part.output), "")
    return getattr(operation, "output", "")


def _label(last: Operation) -> str:
    """Which sub-layer a line is."""
    if isinstance(last, StoreSource):
        return last.input
    if isinstance(last, FusedLinear) and last.output:
        return last.output.removesuffix(".out")
    return "tokens" if isinstance(last, TopCandidates) else ""


def _described(line: Sequence[Operation], above: str, arch: Architecture, *, quantised: bool) -> Iterator[str]:
    """The parts of a line. above: name of the result of the line above; quantised: whether weights have 8 bits."""
    for number, operation in enumerate(line):
        if isinstance(operation, Embed):
            yield f"{operation.output} = {operation.table}[token] × {operation.factor:.4g} + position"
        elif isinstance(operation, FusedLinear):
            if not number:
                yield from _entry(operation, above)
            if operation.product is not None:
                yield _matrix(operation.product) + _marked(operation.product.range, quantised)
            if operation.activation:
                yield operation.activation
        elif isinstance(operation, AttendEncoder | AttendSelf | AttendSource):
            encoder = isinstance(operation, AttendEncoder)  # whose attention is one of floats in every precision
            yield _heads(operation, arch) + ("" if encoder else _marked(operation.key, quantised))
        elif isinstance(operation, StoreSource):
            yield f"keys and values of {operation.heads} × {operation.width}{_marked(operation.key, quantised)}"
        elif isinstance(operation, TopCandidates):
            limited = " of the sentence's list" if operation.shortlist else ""
            yield f"{_matrix(operation.product)}{_marked(operation.product.range, quantised)} → best tokens{limited}"
        else:
            assert_never(operation)


def _entry(operation: FusedLinear, above: str) -> Iterator[str]:
    """What a line begins with: a state, or the one that it makes of the line above."""
    value = operation.input or ""
    name = None
    if operation.sum is not None:
        parts = BEFORE if operation.sum.parts == above else operation.sum.parts
        value = f"{parts or 'bias'} + {operation.sum.residual}"
        name = operation.sum.output
    if name is not None:
        value = f"{name} = {value}"
        yield value
    if operation.norm is None:
        if name is None:
            yield value
    elif name is not None:
        yield "norm"
    else:
        assigned = "" if operation.norm.output is None else f"{operation.norm.output} = "
        yield f"{assigned}norm({value})"


def _heads(operation: AttendEncoder | AttendSelf | AttendSource, arch: Architecture) -> str:
    """How many there are, and which, if some are gone."""
    kept = ", ".join(map(str, sorted(operation.original)))
    which = f" ({kept})" if kept and operation.heads < arch.heads else ""
    return f"{operation.heads} of {arch.heads} heads × {operation.width}{which}"


def _matrix(product: Product) -> str:
    return f"W[{product.inputs}, {product.outputs}]"


def _marked(scale_range: Range | None, quantised: bool) -> str:
    return " in fp32" if quantised and scale_range is None else ""
