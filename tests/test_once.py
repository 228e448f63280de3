"""A folder is made once, whichever process asks for it, and a test that changes it is noticed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.once import Once


def write(folder: Path, calls: Path, content: str = "made") -> None:
    """Makes a folder, and notes the call in the file `calls`."""
    folder.mkdir()
    with calls.open("a") as noted:
        noted.write(f"{content}\n")
    (folder / "file").write_text(content)


def fail_once(folder: Path, calls: Path) -> None:
    folder.mkdir()
    (folder / "half").write_text("half")
    if not calls.exists():
        calls.write_text("")
        raise OSError("full")


def content_of(root: Path, calls: Path) -> str:
    return (Once(root)(write, calls) / "file").read_text()


def test_calls_at_the_same_time_make_it_once(tmp_path: Path) -> None:
    calls = tmp_path / "calls"  # each call opens the lock, so that threads wait for each other as processes do
    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(content_of, tmp_path / "root", calls) for _ in range(8)]
        assert [future.result() for future in found] == ["made"] * 8
    assert calls.read_text() == "made\n"


def test_each_setting_is_another_folder(tmp_path: Path) -> None:
    once, calls = Once(tmp_path / "root"), tmp_path / "calls"
    assert once(write, calls) != once(write, calls, "b") == once(write, calls, "b")
    assert calls.read_text() == "made\nb\n"


def test_what_failed_is_made_again_from_nothing(tmp_path: Path) -> None:
    once, calls = Once(tmp_path / "root"), tmp_path / "calls"
    with pytest.raises(OSError, match="full"):
        once(fail_once, calls)
    assert once(fail_once, calls).is_dir()


@pytest.mark.parametrize("change", ["rewritten", "added", "removed"])
def test_a_changed_folder_is_noticed(tmp_path: Path, change: str) -> None:
    once = Once(tmp_path / "root")
    made = once(write, tmp_path / "calls")
    once.check()
    if change == "removed":
        (made / "file").unlink()
    else:
        (made / ("file" if change == "rewritten" else "new")).write_text("MADE")
    with pytest.raises(AssertionError, match="a test that changes a shared folder must copy it"):
        once.check()


def test_calls_that_could_not_be_told_apart_are_refused(tmp_path: Path) -> None:
    once = Once(tmp_path)
    with pytest.raises(ValueError, match="move it to a module's top"):
        once(lambda folder: folder.mkdir())
    with pytest.raises(ValueError, match="an argument differs in each process"):
        once(write, tmp_path, object())  # type: ignore[arg-type]
