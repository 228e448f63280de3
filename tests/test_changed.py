"""`make check` chooses the tests that a change concerns."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.changed import GUARDS, changed_files, concerned, imported_by, module_of


def test_modules_by_their_paths() -> None:
    assert module_of(Path("serving/hmc/serving/wire/status.py")) == "hmc.serving.wire.status"
    assert module_of(Path("compiler/hmc/artifact/__init__.py")) == "hmc.artifact"
    assert module_of(Path("tests/serving/fakes.py")) == "tests.serving.fakes"


def test_imports_of_names_and_modules() -> None:
    source = "import a.b\nfrom hmc.x import y\ndef f():\n    from hmc import z\n"
    assert imported_by(source) == {"a.b", "hmc.x", "hmc.x.y", "hmc", "hmc.z"}


def test_what_imports_a_changed_module_and_what_mirrors_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sources = {
        "tests/serving/wire/test_a.py": "",
        "tests/cli/test_b.py": "from hmc.serving.wire.status import code_of",
        "tests/cli/test_c.py": "from hmc.serving.wire import rules",
        "tests/cli/test_d.py": "from tests.serving.fakes import FakeClock",
        "tests/guards/test_e.py": "",
        "tests/cli/test_f.py": "from hmc.serving import Translator",
        "serving/hmc/serving/__init__.py": "if True:\n    from hmc.serving.translator import Translator",
    }
    for name, source in sources.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)
    tests = [Path(name) for name in sources if name.startswith("tests/")]

    def chosen(*changed: str) -> list[str]:
        return [str(path) for path in concerned(map(Path, changed), tests)]

    assert chosen("README.md") == [str(GUARDS)]
    assert chosen("serving/hmc/serving/wire/status.py") == [
        "tests/guards", "tests/cli/test_b.py", "tests/serving/wire/test_a.py",
    ]  # fmt: skip
    assert chosen("tests/serving/fakes.py") == ["tests/guards", "tests/cli/test_d.py"]
    assert chosen("serving/hmc/serving/translator.py") == ["tests/guards", "tests/cli/test_f.py"]
    assert chosen("tests/cli/test_b.py", "tests/cli/test_c.py")[1:] == ["tests/cli/test_b.py", "tests/cli/test_c.py"]
    assert len(chosen("tests/cli/conftest.py")) == 5
    assert chosen("pyproject.toml") == ["tests"]


def test_changes_are_those_since_the_common_ancestor_and_new_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def git(*arguments: str) -> None:
        who = "-c", "user.name=a", "-c", "user.email=a@b"
        subprocess.run(["git", *who, *arguments], check=True, capture_output=True)

    git("init", "-b", "main")
    Path("old").write_text("1")
    git("add", ".")
    git("commit", "-m", "one")
    git("branch", "before")
    Path("committed").write_text("1")
    git("add", ".")
    git("commit", "-m", "two")
    Path("new").write_text("1")
    assert changed_files("before") == {Path("committed"), Path("new")}
