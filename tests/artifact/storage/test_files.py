"""Directories and files are replaced whole or not at all, also when the process is killed or fails."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import save_file

from hmc.artifact import InvalidRequestError
from hmc.artifact.storage.files import exchange, replace_directory, whole_file, write_whole
from hmc.artifact.storage.formats import Format

REPOSITORY = Path(__file__).resolve().parents[3]
FORM = Format("a model", "model.json", lambda content: "layers" in content, lambda _: ("weights",))
KILLED = """
import os, signal, sys
from pathlib import Path
from hmc.artifact.storage import files
from tests.artifact.storage.test_files import rewrite

rename, calls = Path.replace, []

def replace(self, target):
    calls.append(self)
    if len(calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(self, target)

when, place = sys.argv[1], Path(sys.argv[2])
if when == "between the renames":
    files.exchange, Path.replace = (lambda first, second: False), replace
rewrite(place, lambda: when == "between the renames" or os.kill(os.getpid(), signal.SIGKILL))
"""


def contents(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


def fill(folder: Path, text: str) -> None:
    (folder / "model.json").write_text('{"layers": 1}')
    (folder / "weights").write_text(text)


def rewrite(place: Path, meanwhile: object = None) -> None:
    with replace_directory(place, FORM) as folder:
        fill(folder, "new")
        if callable(meanwhile):
            meanwhile()


def stop() -> None:
    raise KeyboardInterrupt


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    fill(tmp_path / "model", "old")
    return tmp_path / "model"


@pytest.fixture(params=["exchanged", "renamed twice"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways: one exchange, and two renames where directories cannot be exchanged."""
    if request.param == "renamed twice":
        monkeypatch.setattr("hmc.artifact.storage.files.exchange", lambda *_: False)
    return str(request.param)


@pytest.mark.usefixtures("way")
def test_replaced(place: Path) -> None:
    rewrite(place)
    assert (place / "weights").read_text() == "new"
    assert list(place.parent.iterdir()) == [place]


def test_a_new_directory_with_those_above_it(tmp_path: Path) -> None:
    rewrite(tmp_path / "a" / "b")
    assert contents(tmp_path).keys() == {"a/b/model.json", "a/b/weights"}
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o755


@pytest.mark.usefixtures("way")
def test_an_interrupt_leaves_what_was(place: Path) -> None:
    before = contents(place.parent)
    with pytest.raises(KeyboardInterrupt):
        rewrite(place, stop)
    assert contents(place.parent) == before
    assert list(place.parent.iterdir()) == [place]


def test_an_interrupt_between_two_renames_leaves_what_was(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename, calls, before = Path.replace, [], contents(place.parent)

    def replace(self: Path, target: Path) -> Path:
        calls.append(self)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr("hmc.artifact.storage.files.exchange", lambda *_: False)
    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        rewrite(place)
    assert contents(place.parent) == before
    assert len(calls) == 3


def test_an_exchange_needs_no_rename(tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an exchange the directory is never missing, so a kill at any time is harmless."""
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / f"of {name}").touch()
    if not exchange(tmp_path / "a", tmp_path / "b"):
        pytest.skip("this file system cannot exchange two directories")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["of b"]
    assert not exchange(tmp_path / "a", tmp_path / "missing")
    monkeypatch.setattr(Path, "replace", None)
    rewrite(place)
    assert (place / "weights").read_text() == "new"


def killed(when: str, place: Path) -> None:
    """A process that is killed while it replaces `place`."""
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'compiler'}"}
    ran = subprocess.run(
        [sys.executable, "-c", KILLED, when, place], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == -9, ran.stderr


def test_what_a_killed_process_leaves_is_removed_by_the_next(place: Path) -> None:
    killed("while it is written", place)
    assert (place / "weights").read_text() == "old"
    assert len(list(place.parent.iterdir())) == 2
    for name in (".model.old", ".model.abcdefgh", ".model2.abcdefgh.hmc", ".model.abcdefgh.hmc.txt"):
        (place.parent / name).mkdir()  # not ours
    rewrite(place)
    assert (place / "weights").read_text() == "new"
    assert len(list(place.parent.iterdir())) == 5


def test_what_was_moved_aside_comes_back(place: Path) -> None:
    """A process is killed between two renames. The next run fails, but restores the old directory."""
    before = contents(place)
    killed("between the renames", place)
    assert not place.exists()
    with pytest.raises(KeyboardInterrupt):
        rewrite(place, stop)
    assert contents(place) == before
    assert list(place.parent.iterdir()) == [place]


def test_what_a_running_process_writes_is_left_alone(place: Path) -> None:
    with replace_directory(place, FORM) as folder:
        fill(folder, "first")
        rewrite(place)
        assert (folder / "weights").read_text() == "first"
    assert (place / "weights").read_text() == "first"
    assert list(place.parent.iterdir()) == [place]


def test_a_link_stays_and_what_it_names_is_replaced(tmp_path: Path, place: Path) -> None:
    (tmp_path / "links").mkdir()
    link, nowhere = tmp_path / "links" / "current", tmp_path / "links" / "next"
    link.symlink_to(place)
    nowhere.symlink_to(tmp_path / "later")
    rewrite(link)
    rewrite(nowhere)
    assert link.is_symlink()
    assert nowhere.is_symlink()
    assert (place / "weights").read_text() == (tmp_path / "later" / "weights").read_text() == "new"
    assert {path.name for path in (tmp_path / "links").iterdir()} == {"current", "next"}


def test_what_came_meanwhile_is_not_lost(place: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"do not belong to a model: notes\.txt"):
        rewrite(place, lambda: (place / "notes.txt").write_text("mine"))
    assert contents(place) == {"model.json": '{"layers": 1}', "weights": "old", "notes.txt": "mine"}


def test_a_full_disk_is_named(place: Path) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left on device") as caught:
        rewrite(place, full)
    assert caught.value.filename == str(place)
    assert (place / "weights").read_text() == "old"


LIMITED = """
import resource, sys
from pathlib import Path
from tests.artifact.storage.test_files import save_tensors

resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    save_tensors(Path(sys.argv[1]))
except OSError as error:
    print(error.errno, error.filename)
"""


def save_tensors(place: Path, values: int = 10_000) -> None:
    with replace_directory(place, FORM) as folder:
        save_file({"tensor": np.zeros(values, np.float32)}, folder / "weights")


def test_safetensors_that_find_no_room_are_a_system_error(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'compiler'}"}
    ran = subprocess.run(
        [sys.executable, "-c", LIMITED, place], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.stdout == f"{errno.EFBIG} {place}\n", ran.stderr

    def full(*_: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("tests.artifact.storage.test_files.save_file", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        save_tensors(place)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(place))


@pytest.mark.parametrize(("mask", "folders", "files"), [(0o077, 0o700, 0o600), (0o027, 0o750, 0o640)])
def test_the_umask_is_honoured(tmp_path: Path, mask: int, folders: int, files: int) -> None:
    before = os.umask(mask)
    try:
        with replace_directory(tmp_path / "model", FORM) as folder:
            fill(folder, "new")
            (folder / "below").mkdir()
            save_file({"tensor": np.zeros(1, np.float32)}, folder / "below" / "weights")  # 0600, and 0644 with others
        write_whole(tmp_path / "text", "new")
    finally:
        os.umask(before)
    for path in (tmp_path / "model", tmp_path / "model" / "below"):
        assert path.stat().st_mode & 0o777 == folders
    for name in ("model/model.json", "model/weights", "model/below/weights", "text"):
        assert (tmp_path / name).stat().st_mode & 0o777 == files


def test_a_private_file_stays_private(tmp_path: Path) -> None:
    (tmp_path / "text").touch(mode=0o600)
    write_whole(tmp_path / "text", "new")
    assert (tmp_path / "text").stat().st_mode & 0o777 == 0o600


def test_other_errors_of_safetensors_are_left_as_they_are(place: Path) -> None:
    def broken() -> None:
        raise SafetensorError("Error while deserializing header")

    with pytest.raises(SafetensorError):
        rewrite(place, broken)


def test_a_failure_leaves_the_former_file(tmp_path: Path) -> None:
    path = tmp_path / "text"
    with whole_file(path) as file:
        file.write(b"former")

    def fail() -> None:
        with whole_file(path) as file:
            file.write(b"half")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert path.read_bytes() == b"former"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_to_a_file_stays(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "text").write_text("former")
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "text")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "text").read_text() == "new"
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["text"]


def test_a_pipe_is_written_as_it_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reading = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_whole(tmp_path / "pipe", "new")
    assert os.read(reading, 10) == b"new"
    os.close(reading)
    assert (tmp_path / "pipe").is_fifo()


def test_an_open_file_of_the_process_is_written_as_it_is(tmp_path: Path) -> None:
    """As `-o /dev/stdout >FILE` is: another file in FILE's place would not be the one that is open."""
    with (tmp_path / "text").open("w+") as file:
        before = (tmp_path / "text").stat().st_ino
        write_whole(Path(f"/dev/fd/{file.fileno()}"), "new")
        assert file.read() == "new"
    assert (tmp_path / "text").stat().st_ino == before


def test_a_full_disk_leaves_the_former_file_and_is_named(small_disk: Path) -> None:
    write_whole(small_disk / "text", "former")
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_whole(small_disk / "text", "x" * 2**20)
    assert caught.value.filename == str(small_disk / "text")
    assert (small_disk / "text").read_text() == "former"
    assert [path.name for path in small_disk.iterdir()] == ["text"]


def test_a_full_disk_leaves_the_former_folder_and_is_named(small_disk: Path) -> None:
    with replace_directory(small_disk / "model", FORM) as folder:
        fill(folder, "former")
    with pytest.raises(OSError, match="No space left on device") as caught:
        save_tensors(small_disk / "model", 10**6)
    assert caught.value.filename == str(small_disk / "model")
    assert (small_disk / "model" / "weights").read_text() == "former"
    assert [path.name for path in small_disk.iterdir()] == ["model"]
