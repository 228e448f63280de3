"""A new bundle at the path of the old one is loaded: a real server, real models of different weights, and load."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.bundles import bundle_at
from tests.once import Once
from tests.serving.fakes import GUARD_S, FakeFactory, eventually, write_bundle
from tests.tiny import SENTENCES, tiny_checkpoint_at

from hmc.artifact import InvalidArtifactError, InvalidRequestError
from hmc.artifact.errors import OverloadedError
from hmc.serving import DecodeOptions, Translator
from hmc.serving.client import Client
from hmc.serving.levels.host import ModelHost
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings
from hmc.serving.server.upkeep import BundleWatch

LOOK_S = 0.02
OPTIONS = DecodeOptions(beam_size=2, min_length=6, max_length=12)
TEXTS = SENTENCES[:3]


@pytest.fixture(scope="module")
def versions(once: Once) -> dict[str, Path]:
    """Version → a bundle; two, whose weights and translations differ."""
    from hmc.artifact import read_manifest

    paths = [once(bundle_at, once(tiny_checkpoint_at, seed=seed), (24,)) for seed in (4, 5)]
    return {read_manifest(path).version: path for path in paths}


def put_link(target: Path, at: Path) -> None:
    """Makes a symbolic link, in place of another if there is one, at once."""
    beside = at.with_name(f"{at.name}.new")
    beside.symlink_to(target)
    beside.replace(at)


def put_folder(source: Path, at: Path) -> None:
    """Puts a copy of a folder in place of another one. Two folders cannot be exchanged at once: there is a moment
    without any."""
    beside = at.with_name(f"{at.name}.new")
    shutil.copytree(source, beside)
    if at.exists():
        at.rename(at.with_name(f"{at.name}.{at.stat().st_ino}"))
    beside.rename(at)


@pytest.mark.parametrize("put", [put_link, put_folder])
def test_no_request_is_lost_or_mixed(
    versions: dict[str, Path], tmp_path: Path, put: Callable[[Path, Path], None]
) -> None:
    expected = {}
    for version, bundle in versions.items():
        with Translator(bundle, threads=1, cache="none") as translator:
            expected[version] = [translation.text for translation in translator.translate(TEXTS, OPTIONS)]
    first, second = expected
    assert expected[first] != expected[second]
    served = tmp_path / "bundle"
    put(versions[first], served)
    settings = ServerSettings(port=0, threads=1, cache="none", watch=LOOK_S)
    stop = threading.Event()
    with BackgroundServer(served, settings) as running, Client(running.address) as client:

        def one_by_one() -> set[str]:
            seen = set()
            while not stop.is_set():
                answer = client.translate(TEXTS, options=OPTIONS)
                assert [t.text for t in answer] == expected[answer.bundle_version]
                seen.add(answer.bundle_version)
            return seen

        def streams() -> set[str]:
            seen = set()
            while not stop.is_set():
                for answer in client.translate_stream(TEXTS * 4, options=OPTIONS):
                    assert answer.result().text == expected[answer.bundle_version][answer.index % len(TEXTS)]
                    seen.add(answer.bundle_version)
            return seen

        with ThreadPoolExecutor(2) as pool:
            loads = [pool.submit(work) for work in (one_by_one, streams)]
            try:
                for version in (second, first, second):
                    put(versions[version], served)
                    eventually(lambda version=version: running.host.version == version, 60)  # type: ignore[misc]
            finally:
                stop.set()
            seen = [done.result(GUARD_S) for done in loads]
        assert client.translate(TEXTS, options=OPTIONS).bundle_version == second
    assert set.union(*seen) == {first, second}


def looks_of(host: ModelHost, number: int, change: Callable[[], Awaitable[object]] | None = None) -> BundleWatch:
    """Looks so many times, and returns the watch."""

    async def reload() -> object:
        return await asyncio.to_thread(host.reload)

    watch = BundleWatch(host, change or reload)

    async def run() -> None:
        for _ in range(number):
            await watch.look()

    asyncio.run(run())
    return watch


def looks(watch: BundleWatch, number: int) -> None:
    async def run() -> None:
        for _ in range(number):
            await watch.look()

    asyncio.run(run())


@pytest.fixture
def host(bundle: Path, factory: FakeFactory) -> ModelHost:
    made = ModelHost(bundle, factory)
    made.start()
    return made


def test_a_half_written_bundle_is_read_when_it_is_whole(
    host: ModelHost, bundle: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The manifest is there first, as if the bundle were copied over the old one file by file."""
    watch = looks_of(host, 3)
    new = write_bundle(tmp_path / "new", version="fedcba9876543210")
    files = sorted((path for path in new.rglob("*") if path.is_file()), key=lambda path: path.name != "bundle.json")
    with caplog.at_level(logging.ERROR):
        for file in files:
            shutil.copy(file, bundle / file.relative_to(new))
            looks(watch, 1)  # it changes from look to look, so it is not read
            assert host.version == "0123456789abcdef"
        assert not caplog.records
    looks(watch, 2)
    assert host.version == "fedcba9876543210"


def test_a_broken_bundle_is_logged_once(
    host: ModelHost, bundle: Path, factory: FakeFactory, caplog: pytest.LogCaptureFixture
) -> None:
    watch = looks_of(host, 2)
    shutil.rmtree(bundle)
    write_bundle(bundle, version="fedcba9876543210")
    (bundle / "h6" / "encoder.onnx").write_text("changed")
    with caplog.at_level(logging.ERROR):
        looks(watch, 5)
    (record,) = caplog.records
    assert "the old bundle stays in service" in record.getMessage()
    assert "h6/encoder.onnx has sha256" in record.getMessage()
    assert host.version == "0123456789abcdef"
    with host.lease() as lease:
        assert lease.bundle_version == "0123456789abcdef"
    shutil.rmtree(bundle)
    write_bundle(bundle, version="fedcba9876543210")
    looks(watch, 2)
    assert host.version == "fedcba9876543210"
    assert len(caplog.records) == 1
    shutil.rmtree(bundle)
    with caplog.at_level(logging.ERROR):
        looks(watch, 4)
    assert len(caplog.records) == 2
    assert host.version == "fedcba9876543210"


def test_a_bundle_that_cannot_be_read_is_a_failed_reload(host: ModelHost, bundle: Path) -> None:
    """So it is counted: `reload` is what counts, and it says why."""
    tried: list[InvalidArtifactError] = []

    async def reload() -> object:
        try:
            return await asyncio.to_thread(host.reload)
        except InvalidArtifactError as error:
            tried.append(error)
            raise

    watch = looks_of(host, 2, reload)
    (bundle / "bundle.json").write_text('{"schema_version": 99}')
    looks(watch, 4)
    assert len(tried) == 1
    assert host.version == "0123456789abcdef"


def test_the_same_version_is_not_loaded_again(host: ModelHost, bundle: Path, factory: FakeFactory) -> None:
    loaded = len(factory.made)
    watch = looks_of(host, 3)
    os.utime(bundle / "bundle.json", (1, 1))
    looks(watch, 3)
    assert len(factory.made) == loaded


@pytest.mark.parametrize("error", [RuntimeError("a bug"), OverloadedError("no memory: try again later")])
def test_an_error_that_passes_is_raised_and_the_bundle_tried_again(
    host: ModelHost, bundle: Path, factory: FakeFactory, error: Exception
) -> None:
    shutil.rmtree(bundle)
    write_bundle(bundle, version="fedcba9876543210")
    factory.fail["full"] = error
    watch = looks_of(host, 1)
    for _ in range(3):
        with pytest.raises(type(error)):
            looks(watch, 1)
    assert host.version == "0123456789abcdef"
    factory.fail.clear()
    looks(watch, 1)
    assert host.version == "fedcba9876543210"


def test_levels_that_load_later_are_of_the_bundle_in_service(factory: FakeFactory, tmp_path: Path) -> None:
    """The link leads elsewhere already, and the new bundle is not in service yet."""
    link = tmp_path / "link"
    put_link(write_bundle(tmp_path / "old", version="old"), link)
    host = ModelHost(link, factory, lazy=True)
    host.start()
    put_link(write_bundle(tmp_path / "new", version="new"), link)
    host.load("h6")
    assert host.status().path == tmp_path / "old"
    host.reload()
    assert (host.version, host.status().path) == ("new", tmp_path / "new")
    assert host.bundle_path == link


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_times_that_make_no_sense(seconds: float) -> None:
    with pytest.raises(InvalidRequestError, match="watch"):
        ServerSettings(watch=seconds)
