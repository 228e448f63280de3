"""Levels that load when a request first chooses them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.serving.fakes import FakeFactory, eventually

from hmc.artifact import InvalidArtifactError
from hmc.artifact.errors import DeviceUnavailableError
from hmc.serving import DecodeOptions, Selector, Target
from hmc.serving.client import Answer
from hmc.serving.levels.host import ModelHost
from hmc.serving.levels.models import Models
from hmc.serving.server.handlers import Handlers
from hmc.serving.server.observing.metrics import Metrics
from hmc.serving.server.settings import ServerSettings
from hmc.serving.server.threads import ChangeThread

GUARD_S = 600.0
"""Seconds after which a test that hangs fails."""


@pytest.fixture
def host(bundle: Path, factory: FakeFactory) -> ModelHost:
    """Only the default level is loaded; h6 and h12 load when `factory.hold_at` releases them."""
    made = ModelHost(bundle, factory, lazy=True)
    made.start()
    for level in ("h6", "h12"):
        factory.hold_at[level] = threading.Event()
    return made


def run(host: ModelHost, test: Callable[[Handlers], Awaitable[None]]) -> None:
    """Runs a test on an event loop that has a single default thread."""

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        handlers = Handlers(Models([host]), ServerSettings(lazy=True), Metrics(lambda: [host.status()]))
        await asyncio.wait_for(test(handlers), GUARD_S)

    asyncio.run(main())


async def translate(handlers: Handlers, level: str) -> Answer:
    with handlers.record() as record:
        return await handlers.translate(record, ["a"], Selector(name=level), DecodeOptions(), [Target()])


async def begun(factory: FakeFactory, level: str) -> None:
    while level not in factory.asked:
        await asyncio.sleep(0)


def test_calls_that_wait_for_a_level_hold_up_no_other_call(host: ModelHost, factory: FakeFactory) -> None:
    async def test(handlers: Handlers) -> None:
        waiting = [asyncio.create_task(translate(handlers, "h6")) for _ in range(40)]
        await begun(factory, "h6")
        before = threading.active_count()
        listed = await handlers.levels()
        assert [level.name for level in listed.levels if level.loaded] == ["full"]
        assert (await translate(handlers, "full"))[0].text == "full:a"
        assert threading.active_count() <= before + 1  # the default thread, and none for each call
        factory.hold_at["h6"].set()
        assert [answer[0].text for answer in await asyncio.gather(*waiting)] == ["h6:a"] * 40

    run(host, test)
    assert factory.asked.count("h6") == 1


def test_a_load_goes_on_when_the_call_is_cancelled(host: ModelHost, factory: FakeFactory) -> None:
    async def test(handlers: Handlers) -> None:
        first, second = (asyncio.create_task(translate(handlers, "h6")) for _ in range(2))
        await begun(factory, "h6")
        first.cancel()
        factory.hold_at["h6"].set()
        assert (await second)[0].text == "h6:a"
        assert first.cancelled()

    run(host, test)
    assert factory.asked.count("h6") == 1


def test_a_load_that_fails_fails_every_waiting_call_and_is_tried_again(host: ModelHost, factory: FakeFactory) -> None:
    factory.fail["h6"] = InvalidArtifactError("level", ["broken graph"], "fix")

    async def test(handlers: Handlers) -> None:
        waiting = [asyncio.create_task(translate(handlers, "h6")) for _ in range(3)]
        await begun(factory, "h6")
        factory.hold_at["h6"].set()
        for call in waiting:
            with pytest.raises(InvalidArtifactError, match="broken graph"):
                await call
        factory.fail.clear()
        assert (await translate(handlers, "h6"))[0].text == "h6:a"

    run(host, test)
    assert factory.asked.count("h6") == 2


def test_levels_load_one_after_the_other(host: ModelHost, factory: FakeFactory) -> None:
    async def test(handlers: Handlers) -> None:
        calls = [asyncio.create_task(translate(handlers, level)) for level in ("h6", "h12")]
        await begun(factory, "h6")
        assert factory.asked[-1] == "h6"
        factory.hold_at["h6"].set()
        await begun(factory, "h12")
        factory.hold_at["h12"].set()
        assert [answer.level for answer in await asyncio.gather(*calls)] == ["h6", "h12"]

    run(host, test)


def test_a_change_that_has_not_begun_is_dropped_with_its_call() -> None:
    changes, release, made = ChangeThread(), threading.Event(), list[str]()

    def change(name: str) -> str:
        release.wait(GUARD_S)
        made.append(name)
        return name

    async def main() -> None:
        running, dropped, last = (asyncio.create_task(changes.run(change, name)) for name in "abc")
        await asyncio.sleep(0)
        dropped.cancel()
        await asyncio.wait([dropped])
        release.set()
        assert [*await asyncio.gather(running, last)] == ["a", "c"]

    asyncio.run(main())
    assert made == ["a", "c"]
    eventually(lambda: all(thread.name != "hmc-changes" for thread in threading.enumerate()))


@pytest.mark.parametrize("selector", [Selector(), Selector(auto=True)])
def test_a_default_level_without_its_device_is_an_error_after_one_try(
    bundle: Path, factory: FakeFactory, selector: Selector
) -> None:
    made = ModelHost(bundle, factory, lazy=True, on_demand=True)
    made.start()
    factory.fail["full"] = DeviceUnavailableError("cuda is not there")

    async def test(handlers: Handlers) -> None:
        for tries in (1, 2):
            with handlers.record() as record, pytest.raises(DeviceUnavailableError, match="cuda is not there"):
                await handlers.translate(record, ["a"], selector, DecodeOptions(), [Target()])
            assert factory.asked == ["full"] * tries
        factory.fail.clear()
        with handlers.record() as record:
            answer = await handlers.translate(record, ["a"], selector, DecodeOptions(), [Target()])
        assert answer.level == "full"

    run(made, test)


def test_a_level_that_becomes_the_default_is_in_use_until_it_is(host: ModelHost, factory: FakeFactory) -> None:
    """Else a load in between could take its memory."""

    async def test(handlers: Handlers) -> None:
        choosing = asyncio.create_task(handlers.set_default("h6"))
        await begun(factory, "h6")
        assert host.cache._wanted["h6"] == 1
        factory.hold_at["h6"].set()
        assert (await choosing).is_default
        assert host.cache._wanted["h6"] == 0

    run(host, test)
