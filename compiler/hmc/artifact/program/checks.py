"""Whether a program fits its architecture, its files and itself."""

from __future__ import annotations

from collections.abc import Mapping

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
    StoreSource,
    TopCandidates,
)


def program_problems(program: Program, arch: Architecture) -> list[str]:
    """Contradictions within the program, or with the architecture (empty if there are none): values that are read
    before they are written or with another width, tensors of another shape, operations in the wrong list."""
    check = _Check(program, arch)
    check.run("encode", program.encode, (Embed, FusedLinear, AttendEncoder, StoreSource))
    check.run("step", program.step, (Embed, FusedLinear, AttendSelf, AttendSource, TopCandidates))
    last = program.step[-1:] and program.step[-1].kind
    if last != "candidates" or [operation.kind for operation in program.step].count("candidates") != 1:
        check.problems.append("step: it has to end with candidates, and to have them once")
    stored = check.planes["store_source"]
    read = check.planes["attend_source"]
    if stored != read:
        check.problems.append(f"planes of the source: {stored} are stored, {read} are read")
    own = list(check.planes["attend_self"])
    if own != list(range(len(own))):
        check.problems.append(f"planes of self-attention are {own}: expected 0 to {len(own) - 1} in turn")
    unused = sorted(program.tensors.keys() - check.used)
    return check.problems + [f"tensor {name}: no operation reads it" for name in unused]


class _Check:
    """Follows the widths of values through a program."""

    def __init__(self, program: Program, arch: Architecture) -> None:
        self.program = program
        self.arch = arch
        self.problems: list[str] = []
        self.used: set[str] = set()
        self.planes = {kind: dict[int, tuple[int, int]]() for kind in ("attend_self", "attend_source", "store_source")}
        self.widths: dict[str, int] = {}
        self.where = ""

    def run(self, name: str, operations: tuple[Operation, ...], allowed: tuple[type, ...]) -> None:
        """Checks one list."""
        self.widths = {}
        for number, operation in enumerate(operations):
            self.where = f"{name}[{number}] ({operation.kind})"
            if not isinstance(operation, allowed):
                self._say("is not an operation of this list")
                continue
            if number == 0 and not isinstance(operation, Embed):
                self._say("the first operation has to be embed")
            self._check(operation)

    def _check(self, operation: Operation) -> None:
        d = self.arch.d_model
        if isinstance(operation, Embed):
            size = self.arch.source_size if self.where.startswith("encode") else self.arch.vocab_size
            self._tensor(operation.table, (size, d))
            self._tensor(operation.scales, (size, 1))
            self._tensor(operation.positions, (self.arch.max_positions, d))
            self._write(operation.output, d)
        elif isinstance(operation, FusedLinear):
            self._linear(operation)
        elif isinstance(operation, TopCandidates):
            self._product(operation.product, self._read(operation.input))
            if operation.product.outputs != self.arch.vocab_size:
                self._say(f"{operation.product.outputs} logits: the vocabulary has {self.arch.vocab_size}")
        else:
            inner = operation.heads * operation.width
            if not isinstance(operation, StoreSource):
                self._heads(operation)
            parts = {"attend_self": 3, "attend_encoder": 3, "attend_source": 1, "store_source": 2}[operation.kind]
            if self._read(operation.input) != parts * inner:
                self._say(f"{operation.input} has the width {self._read(operation.input)}, not {parts} · {inner}")
            if not isinstance(operation, AttendEncoder):
                planes = self.planes[operation.kind]
                if operation.plane in planes:
                    self._say(f"plane {operation.plane} is given twice")
                planes[operation.plane] = (operation.heads, operation.width)
            if not isinstance(operation, StoreSource):
                self._write(operation.output, inner)

    def _heads(self, operation: AttendSelf | AttendSource | AttendEncoder) -> None:
        named = set(operation.original)
        if named and (not len(named) == len(operation.original) == operation.heads or max(named) >= self.arch.heads):
            self._say(
                f"{operation.heads} heads are {list(operation.original)}: each needs a number below {self.arch.heads}"
            )

    def _linear(self, operation: FusedLinear) -> None:
        d = self.arch.d_model
        if (operation.sum is None) == (operation.input is None):
            self._say("it reads either a sum or an input")
            return
        if (operation.product is None) != (operation.output is None):
            self._say("a product has an output, and nothing else has one")
        if operation.sum is not None:
            for name in (operation.sum.parts, operation.sum.residual):
                if name is not None and self._read(name) != d:
                    self._say(f"{name} has the width {self._read(name)}, not {d}")
            self._tensor(operation.sum.bias, (d,))
            self._write(operation.sum.output, d)
        width = d if operation.input is None else self._read(operation.input)
        if operation.norm is not None:
            self._tensor(operation.norm.weight, (d,))
            self._tensor(operation.norm.bias, (d,))
            if width != d:
                self._say(f"a norm of the width {width}, not {d}")
            self._write(operation.norm.output, d)
        if operation.product is not None:
            self._product(operation.product, width)
            self._write(operation.output, operation.product.outputs)

    def _product(self, product: Product, width: int | None) -> None:
        if product.inputs != width:
            self._say(f"a product of {product.inputs} inputs reads a value of the width {width}")
        for matrix in product.matrices:
            integers = product.range is not None
            shape = (product.inputs, matrix.outputs) if integers else (matrix.outputs, product.inputs)
            self._tensor(matrix.weight, shape)
            self._tensor(matrix.scales, (matrix.outputs,))
            self._tensor(matrix.bias, (matrix.outputs,))
            if integers != (matrix.scales is not None):
                self._say(f"{matrix.weight}: a product has a range exactly where its weights have scales")

    def _tensor(self, name: str | None, shape: tuple[int, ...]) -> None:
        if name is None:
            return
        self.used.add(name)
        place = self.program.tensors.get(name)
        if place is None:
            self._say(f"the tensor {name} has no place")
        elif place.shape != shape:
            self._say(f"the tensor {name} has the shape {list(place.shape)}, not {list(shape)}")

    def _read(self, name: str) -> int | None:
        if name not in self.widths:
            self._say(f"{name} is read before it is written")
        return self.widths.get(name)

    def _write(self, name: str | None, width: int) -> None:
        if name is None:
            return
        if name in self.widths:
            self._say(f"{name} is written twice")
        self.widths[name] = width

    def _say(self, problem: str) -> None:
        self.problems.append(f"{self.where}: {problem}")


def file_problems(program: Program, sizes: Mapping[str, int]) -> list[str]:
    """Files that a program reads and no level lists, and tensors that lie outside of their files.

    sizes: path within the bundle → bytes, of the files of all levels.
    """
    problems = []
    unlisted = {place.file for place in program.tensors.values()} - sizes.keys()
    problems += [f"reads {file}, which is not listed" for file in sorted(unlisted)]
    for name, place in program.tensors.items():
        if place.file in sizes and place.end > sizes[place.file]:
            problems.append(f"tensor {name} ends after {place.file}")
    return problems
