"""What processes of one service share: the lock, the changes that are in force, and the rates of callers."""

from __future__ import annotations

import asyncio
import fcntl
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.message import Message
from tests.processes import environment
from tests.serving.fakes import GUARD_S, FakeClock

from hmc.serving.server.processes import group
from hmc.serving.server.processes.group import Group, shared_allowance
from hmc.v1 import translation_pb2 as pb

Change = tuple[str, Message]


def load(name: str, model: str = "") -> Change:
    return "LoadLevel", pb.LoadLevelRequest(name=name, model=model)


def unload(name: str) -> Change:
    return "UnloadLevel", pb.UnloadLevelRequest(name=name)


def default(name: str, model: str = "") -> Change:
    return "SetDefaultLevel", pb.SetDefaultLevelRequest(name=name, model=model)


def reload(path: str | None = None, model: str = "") -> Change:
    return "Reload", pb.ReloadRequest(bundle_path=path, model=model)


@pytest.mark.parametrize(
    ("made", "in_force"),
    [
        ([load("h36"), unload("h36")], [unload("h36")]),
        ([load("h36"), load("h72"), unload("h36")], [load("h72"), unload("h36")]),
        ([default("h36"), reload("new")], [reload("new")]),
        ([unload("h36"), load("h72"), reload("new")], [reload("new"), load("h72")]),
        ([reload("new"), default("h36")], [reload("new"), default("h36")]),
        ([load("h36"), reload("new")], [reload("new"), load("h36")]),
        ([default("h72"), unload("full"), default("h36")], [default("h36"), unload("full")]),
        ([load("h36"), default("h36"), load("h36")], [load("h36"), default("h36")]),
        ([reload("new"), default("h36"), reload()], [reload("new")]),
        ([reload()], [reload()]),
        ([reload("a", "en-de"), reload("b", "fr-en")], [reload("a", "en-de"), reload("b", "fr-en")]),
        ([default("h36", "en-de"), default("h36", "fr-en")], [default("h36", "en-de"), default("h36", "fr-en")]),
    ],
)
def test_a_new_process_makes_the_changes_in_force(tmp_path: Path, made: list[Change], in_force: list[Change]) -> None:
    for index, change in enumerate(made):
        Group(tmp_path, index, 9).note(*change)
    assert Group(tmp_path, 8, 9).changes() == in_force


def test_what_held_for_a_bundle_is_forgotten_with_it(tmp_path: Path) -> None:
    group = Group(tmp_path, 0, 2)
    for change in (reload("a", "en-de"), default("h36", "en-de"), default("h36", "fr-en"), load("h36", "en-de")):
        group.note(*change)
    group.replaced("en-de", "1")
    assert group.changes() == [reload("a", "en-de"), load("h36", "en-de"), default("h36", "fr-en")]


def test_what_holds_for_a_new_bundle_stays_when_the_next_process_takes_it(tmp_path: Path) -> None:
    first, second = Group(tmp_path, 0, 2), Group(tmp_path, 1, 2)
    first.replaced("", "1")
    first.note(*default("h36"))
    second.replaced("", "1")
    assert second.changes() == [default("h36")]
    second.replaced("", "2")
    assert second.changes() == []
    first.note(*default("h72"))
    first.drop(*default("h72"))
    assert first.changes() == []
    first.note(*reload("other"))
    first.note(*default("h36"))
    first.replaced("", "2")
    assert first.changes() == [reload("other")]


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set when the lock is refused."""
    event, plain = asyncio.Event(), fcntl.flock

    def noted(file: Any, how: int) -> None:
        try:
            plain(file, how)
        except BlockingIOError:
            event.set()
            raise

    monkeypatch.setattr("hmc.serving.server.processes.group.fcntl.flock", noted)
    return event


def test_one_process_changes_at_a_time(tmp_path: Path, refused: asyncio.Event) -> None:
    inside, most, left = 0, 0, 4

    async def change(index: int) -> None:
        nonlocal inside, most, left
        async with Group(tmp_path, index, 4).changing():
            inside, left = inside + 1, left - 1
            most = max(most, inside)
            if left:  # another one tries to come in meanwhile
                refused.clear()
                await asyncio.wait_for(refused.wait(), GUARD_S)
            inside -= 1

    async def main() -> None:
        await asyncio.gather(*(change(index) for index in range(4)))

    asyncio.run(main())
    assert most == 1


HOLDS_THE_LOCK = """
import asyncio, sys
from pathlib import Path
from hmc.serving.server.processes.group import Group

async def main():
    async with Group(Path(sys.argv[1]), 0, 2).changing():
        print("holds it", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path, refused: asyncio.Event) -> None:
    command = [sys.executable, "-c", HOLDS_THE_LOCK, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "holds it\n"

        async def take() -> None:
            async with Group(tmp_path, 1, 2).changing():
                pass

        async def main() -> None:
            taking = asyncio.create_task(take())
            await asyncio.wait_for(refused.wait(), GUARD_S)
            assert not taking.done()
            holder.kill()
            await asyncio.wait_for(taking, GUARD_S)

        asyncio.run(main())


def test_only_running_processes_are_the_others(tmp_path: Path) -> None:
    group = Group(tmp_path, 1, 3)
    assert group.others() == []
    for index in (0, 1):
        (tmp_path / f"{index}.sock").touch()
    assert group.others() == [0]
    Group(tmp_path, 0, 3).leave()
    assert group.others() == []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """The clock of the machine, as shared rates read it."""
    fake = FakeClock()
    monkeypatch.setattr(group, "time", SimpleNamespace(monotonic=fake))
    return fake


@pytest.mark.usefixtures("clock")
def test_processes_share_a_rate(tmp_path: Path) -> None:
    one, two = (shared_allowance(tmp_path, "team/α", 0.001, 3) for _ in range(2))
    assert [one.take(1), two.take(1), one.take(1)] == [0, 0, 0]
    assert two.take(1) == pytest.approx(1000)
    assert shared_allowance(tmp_path, "another", 0.001, 3).take(3) == 0


def test_a_shared_rate_fills_up(tmp_path: Path, clock: FakeClock) -> None:
    one, two = (shared_allowance(tmp_path, "team", 50.0, 1) for _ in range(2))
    assert one.take(1) == 0
    assert two.take(1) == pytest.approx(0.02)
    clock.now = 0.02
    assert two.take(1) == 0
