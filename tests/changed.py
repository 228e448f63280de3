"""Prints the tests that a change concerns, for `make check`: `python -m tests.changed [SINCE]`.

They are the test files that were changed since SINCE (default: origin/main) or are not committed, those that import a
changed module or a name of it through its package, those in the folder that mirrors a changed module's, and the guards.
After a change of what all tests share, such as pyproject.toml, they are all tests.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Set
from pathlib import Path

ROOTS = ("protos", "compiler", "training", "engine", "serving", "benchmark", "pipelines", "cli")
GUARDS = Path("tests/guards")
SHARED = {"pyproject.toml", "hatch_build.py", "constraints.txt", "Makefile", "tests/conftest.py"}


def changed_files(since: str) -> set[Path]:
    """The files that differ from the common ancestor with `since`, and those that git does not know yet."""
    base = _git("merge-base", since, "HEAD")[0]
    return {Path(name) for name in (*_git("diff", "--name-only", base), *_git("ls-files", "-o", "--exclude-standard"))}


def concerned(changed: Iterable[Path], tests: Iterable[Path]) -> list[Path]:
    """Those of `tests`, paths from the repository's root, that these changed files concern; the guards first."""
    changed = list(changed)
    if SHARED & set(map(str, changed)):
        return [Path("tests")]
    modules = {module_of(path) for path in changed if path.suffix == ".py"}
    folders = {Path("tests", *path.parts[2:-1]) for path in changed if path.suffix == ".py" and path.parts[0] in ROOTS}
    folders |= {path.parent for path in changed if path.name == "conftest.py" and path.parts[0] == "tests"}
    modules |= names_of(modules)
    found = [
        path
        for path in sorted(tests)
        if path in changed or path.parent in folders or modules & imported_by(path.read_text(encoding="utf-8"))
    ]
    return [GUARDS, *(path for path in found if GUARDS not in path.parents)]


def names_of(modules: Set[str]) -> set[str]:
    """The names under which packages offer what these modules define, such as `hmc.serving.Translator`."""
    found = set[str]()
    for path in (path for root in ROOTS for path in Path(root).rglob("__init__.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module in modules:
                found |= {f"{module_of(path)}.{alias.name}" for alias in node.names}
    return found


def module_of(path: Path) -> str:
    """The dotted name of a module by its path."""
    parts = path.with_suffix("").parts
    parts = parts[1:] if parts[0] in ROOTS else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_by(source: str) -> set[str]:
    """The modules that a source file imports, and the names that it imports from packages, which may be modules."""
    found = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def _git(*arguments: str) -> list[str]:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout.splitlines()


if __name__ == "__main__":
    given = sys.argv[1] if len(sys.argv) > 1 else "origin/main"
    print(*concerned(changed_files(given), Path("tests").rglob("test_*.py")))
