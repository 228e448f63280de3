"""The page of threats names a test for each of them, and the tests exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

THREATS = 25
"""At least so many rows: fewer mean that the table was not found."""


def rows_of(page: str) -> dict[str, list[str]]:
    """Threat → the tests that its row names, as `FILE::NAME` below `tests/`."""
    table = page.split("## What HMC does\n")[1].split("\n## ", maxsplit=1)[0]
    cells = [row.strip("|").split("|") for row in table.splitlines() if row.startswith("| ")][1:]
    return {threat.strip(): re.findall(r"`([^`]+)`", tests) for threat, _, tests in cells}


def missing_tests(tests: Path, named: list[str]) -> list[str]:
    """Those that do not exist."""
    missing = []
    for each in named:
        file, _, name = each.partition("::")
        path = tests / file
        tree = ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else ast.parse("")
        if not any(isinstance(node, ast.FunctionDef) and node.name == name for node in tree.body):
            missing.append(each)
    return missing


def test_every_threat_has_a_test_that_exists(repository: Path) -> None:
    rows = rows_of((repository / "docs" / "security.md").read_text(encoding="utf-8"))
    assert len(rows) >= THREATS
    assert [threat for threat, tests in rows.items() if not tests] == []
    assert missing_tests(repository / "tests", [test for tests in rows.values() for test in tests]) == []


def test_a_name_of_no_test_would_be_found(repository: Path) -> None:
    own = f"guards/{Path(__file__).name}::test_a_name_of_no_test_would_be_found"
    wrong = [f"{own}_at_all", "guards/test_nothing.py::test_x"]
    assert missing_tests(repository / "tests", [own, *wrong]) == wrong
    page = "## What HMC does\n| threat | answer | tests |\n|---|---|---|\n| a | b `c` | |\n| d | e | `f::g` |\n"
    assert rows_of(page) == {"a": [], "d": ["f::g"]}
