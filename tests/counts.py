"""Counts what a reader of the code has to hold in mind, for every room.

    python -m tests.counts

Generated code is left out: the gRPC stubs and the synchronous client. A written tuple is `a, b = x, y`, unless it
swaps values; a nested condition is a conditional expression within another one.
"""

from __future__ import annotations

import ast
import tokenize
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tests.processes import REPOSITORY, ROOTS

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
GENERATED = "serving/hmc/serving/client/client.py"
"""Beside the stubs, which are no room."""
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COUNTED = {tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING}


@dataclass
class Counts:
    """Counts of some modules. Places are written as `PATH:LINE`."""

    modules: int = 0
    lines: int = 0
    tokens: int = 0
    """Names, operators, numbers and strings, without docstrings. An f-string is one."""
    functions: list[int] = field(default_factory=list)
    """The lines of each."""
    tuples: list[str] = field(default_factory=list)
    comprehensions: int = 0
    conditions: int = 0
    nested: list[str] = field(default_factory=list)

    def add(self, path: Path, *, tokens: bool) -> None:
        """Counts a module. tokens: its tokens too, which takes as long as all the rest."""
        source = path.read_text(encoding="utf-8")
        self.modules += 1
        self.lines += len(source.splitlines())
        self.tokens += tokens_of(source) if tokens else 0
        self._look(ast.parse(source), path.relative_to(REPOSITORY), within=False)

    def _look(self, node: ast.AST, path: Path, *, within: bool) -> None:
        """within: whether the node is a part of a conditional expression."""
        if isinstance(node, FUNCTIONS):
            assert node.end_lineno
            self.functions.append(node.end_lineno - node.lineno + 1)
        elif isinstance(node, ast.Assign) and is_written_tuple(node):
            self.tuples.append(f"{path}:{node.lineno}")
        elif isinstance(node, COMPREHENSIONS):
            self.comprehensions += 1
        elif isinstance(node, ast.IfExp):
            self.conditions += 1
            if within:
                self.nested.append(f"{path}:{node.lineno}")
            within = True
        for child in ast.iter_child_nodes(node):
            self._look(child, path, within=within)

    def per_thousand(self, number: int) -> float:
        """A number for every 1 000 lines."""
        return 1000 * number / self.lines


def is_written_tuple(node: ast.Assign) -> bool:
    """Whether an assignment takes a written tuple apart that does not merely swap what is on its left."""
    if not isinstance(node.value, ast.Tuple):
        return False
    values = sorted(map(ast.unparse, node.value.elts))
    written = [target for target in node.targets if isinstance(target, ast.Tuple | ast.List)]
    return any(sorted(map(ast.unparse, target.elts)) != values for target in written)


def tokens_of(source: str) -> int:
    """The number of tokens."""
    number = 0
    open_strings = 0
    before = tokenize.NEWLINE
    lines = iter(source.splitlines(keepends=True))
    for token in tokenize.generate_tokens(lambda: next(lines, "")):
        name = tokenize.tok_name[token.type]
        if name == "FSTRING_START":  # since Python 3.12 the parts of an f-string are tokens too
            number += open_strings == 0
            open_strings += 1
        elif name == "FSTRING_END":
            open_strings -= 1
        elif token.type in COUNTED and not open_strings:
            docstring = token.type == tokenize.STRING and before in {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
            number += not docstring
        if token.type not in {tokenize.NL, tokenize.COMMENT}:
            before = token.type
    return number


def rooms() -> dict[str, Path]:
    """Name → folder of every room of `hmc`, without the generated stubs."""
    folders = [folder for root in ROOTS if root.name != "protos" for folder in (root / "hmc").iterdir()]
    return {folder.name: folder for folder in sorted(folders) if any(folder.glob("*.py"))}


def counted(folders: Iterable[Path], *, tokens: bool = True) -> Counts:
    """Counts all modules below some folders. tokens: see `Counts.add`."""
    counts = Counts()
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            if path != REPOSITORY / GENERATED:
                counts.add(path, tokens=tokens)
    return counts


def main() -> None:
    """Prints a row for every room, and one for all."""
    titles = (
        "room",
        "modules",
        "lines",
        "tokens",
        "functions",
        "median lines",
        "tuples",
        "comprehensions",
        "conditions",
    )
    rows: list[Sequence[object]] = [(*titles, "nested")]
    named = {name: counted([folder]) for name, folder in rooms().items()}
    for name, counts in (named | {"all": counted(rooms().values())}).items():
        middle = f"{median(counts.functions):g}"
        own = (name, counts.modules, counts.lines, counts.tokens, len(counts.functions), middle)
        numbers = (len(counts.tuples), counts.comprehensions, counts.conditions, len(counts.nested))
        rows.append((*own, *(f"{number} ({counts.per_thousand(number):.1f})" for number in numbers)))
    widths = [max(len(str(row[column])) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(str(cell).rjust(width) for cell, width in zip(row, widths, strict=True)))
    print("In brackets: for every 1 000 lines.")


if __name__ == "__main__":
    main()
