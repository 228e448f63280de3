"""One assignment a statement, and no conditional expression in another: so that a line is read once."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tests import counts as counts_of
from tests.counts import counted, is_written_tuple, rooms


@pytest.mark.parametrize("room", rooms())
def test_one_assignment_a_statement(room: str) -> None:
    counts = counted([rooms()[room]], tokens=False)
    assert not counts.tuples, "write one assignment a statement"
    assert not counts.nested, "write no conditional expression in another"


@pytest.mark.parametrize(
    ("statement", "written"),
    [
        ("a, b = 1, 2", True),
        ("self.a, self.b = a, b", True),
        ("(a, b), c = d, e", True),
        ("a = b, c = 1, 2", True),
        ("a, b = b, a", False),
        ("x[0], x[1] = x[1], x[0]", False),
        ("a, b = c", False),
        ("a = 1, 2", False),
    ],
)
def test_a_written_tuple_is_known(statement: str, written: bool) -> None:
    [node] = ast.parse(statement).body
    assert isinstance(node, ast.Assign)
    assert is_written_tuple(node) is written


def test_a_module_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts_of, "REPOSITORY", tmp_path)
    (tmp_path / "a.py").write_text(MODULE, encoding="utf-8")
    counts = counted([tmp_path])
    assert (counts.modules, counts.lines, counts.functions) == (1, 9, [5])
    assert (counts.tuples, counts.nested) == (["a.py:6"], ["a.py:7"])
    assert (counts.comprehensions, counts.conditions) == (1, 2)
    assert counts.tokens == 40


MODULE = '''"""What it is for."""


def f(x: int) -> str:
    """Says it."""
    a, b = x, [n for n in range(x)]
    c = 1 if a else 2 if b else 3
    return f"{a} {c:>{x}}" "!"
# the end
'''
