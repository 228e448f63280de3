"""A program in words: a person should be able to read a model in some 40 lines, and see what pruning took."""

from __future__ import annotations

from collections.abc import Iterator

from hmc.artifact.program.operations import (
    AttendEncoder,
    Embed,
    FusedLinear,
    Operation,
    Product,
    Program,
    StoreSource,
    TopCandidates,
)


def describe(program: Program) -> Iterator[str]:
    """The program for people, an operation a line."""
    for name, operations in (("encode, once a sentence", program.encode), ("step, once a token", program.step)):
        yield f"{name}: {len(operations)} operations"
        for operation in operations:
            yield f"  {operation.kind:<14} {_described(operation)}"


def _described(operation: Operation) -> str:
    if isinstance(operation, Embed):
        return f"{operation.output} = {operation.table}[token] × {operation.factor:.4g} + position"
    if isinstance(operation, FusedLinear):
        return "; ".join(_linear_parts(operation))
    if isinstance(operation, TopCandidates):
        limited = ", of the sentence's list" if operation.shortlist else ""
        return f"best tokens of {operation.input}[{operation.product.inputs}] · {_matrices(operation.product)}{limited}"
    bits = "" if operation.key is None else ", 8-bit keys and values"
    heads = f"{operation.heads} × {operation.width}"
    if isinstance(operation, StoreSource):
        return f"plane {operation.plane} = keys and values of {operation.input}, {heads}{bits}"
    plane = "" if isinstance(operation, AttendEncoder) else f", plane {operation.plane}"
    return f"{operation.output} = {heads} heads of {operation.input}{plane}{bits}"


def _linear_parts(operation: FusedLinear) -> Iterator[str]:
    value = operation.input or ""
    if operation.sum is not None:
        terms = (operation.sum.parts, operation.sum.bias and "bias", operation.sum.residual)
        value = " + ".join(term for term in terms if term)
    for part, text in ((operation.sum, value), (operation.norm, f"norm({value})")):
        if part is None:
            continue
        value = text
        if part.output is not None:
            yield f"{part.output} = {value}"
            value = part.output
    if operation.product is not None:
        product = f"{value} · {_matrices(operation.product)}"
        bias = "" if operation.product.matrices[0].bias is None else " + bias"
        result = f"{product}{bias}"
        yield (
            f"{operation.output} = {operation.activation}({result})"
            if operation.activation
            else (f"{operation.output} = {result}")
        )


def _matrices(product: Product) -> str:
    bits = "" if product.range is None else " int8"
    return f"W[{product.inputs}, {product.outputs}]{bits}"
