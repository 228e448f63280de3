"""The memory of levels: shared weights are held once, and unloading gives memory back."""

from __future__ import annotations

import gc
import multiprocessing
import sys
import weakref
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil
import pytest
from tests.bundles import bundle_at
from tests.once import Once
from tests.serving.fakes import GUARD_S
from tests.tiny import SENTENCES, tiny_architecture, tiny_checkpoint_at

from hmc.artifact import read_manifest
from hmc.engine.runtime.device import Device
from hmc.engine.runtime.process_memory import process_bytes, return_free_memory
from hmc.engine.runtime.sessions import LevelSessions
from hmc.serving import DecodeOptions, Selector, Translator
from hmc.serving.client import LevelBytes
from hmc.serving.levels.host import ModelHost
from hmc.serving.levels.memory import byte_shares, disk_shares
from hmc.serving.server.app import open_models
from hmc.serving.server.settings import ServerSettings

MEBIBYTE = 2**20
Measured = TypeVar("Measured")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the proportional set size is Linux's")


@pytest.fixture(scope="module")
def wide_bundle(once: Once) -> Path:
    """Levels full and h12, which share 32 MiB of feed-forward weights and have few weights of their own."""
    return once(bundle_at, once(tiny_checkpoint_at, arch=tiny_architecture(d_model=256, ffn_dim=4096)), (24, 12))


def host_of(bundle: Path, cache: str | Path, **settings: object) -> ModelHost:
    given = ServerSettings(device="cpu", threads=1, cache=cache, **settings)  # type: ignore[arg-type]  # each of its own type
    host = open_models({"": bundle}, given).first
    host.start()
    return host


def use(host: ModelHost, level: str) -> list[str]:
    with host.lease(Selector(name=level)) as lease:
        futures = [lease.submit(text, DecodeOptions(max_length=8)) for text in SENTENCES[:4]]
        return [future.result().text for future in futures]


def held(*folders: str | Path) -> int:
    """Bytes of this process that no file backs, and those of mapped files in `folders`. Unlike `process_bytes`, this
    leaves out the libraries, whose share of a process grows when another process that maps them ends."""
    ours = tuple(f"{folder}/" for folder in folders)
    mapped = psutil.Process().memory_maps(grouped=True)
    return sum(m.pss if m.path.startswith(ours) else m.anonymous for m in mapped)


def settled(*folders: str | Path) -> int:
    gc.collect()
    return_free_memory()
    return held(*folders)


def in_a_fresh_process(measure: Callable[..., Measured], *arguments: Any) -> Measured:
    """Returns what `measure` does in a process whose heap is not fragmented by other tests."""
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=fresh) as process:
        return process.submit(measure, *arguments).result(timeout=600)


def growth_by_a_second_level(bundle: Path, cache: Path | str) -> int:
    """Bytes by which a process that serves one level grows when it serves another one too."""
    host = host_of(bundle, cache, levels=("full",))
    use(host, "full")
    before = settled(bundle, cache)
    host.load("h12")
    use(host, "h12")
    grown = settled(bundle, cache) - before
    host.close()
    return grown


@pytest.mark.slow
@on_linux
def test_a_second_level_needs_memory_for_its_own_weights_only(wide_bundle: Path, tmp_path: Path) -> None:
    assert in_a_fresh_process(growth_by_a_second_level, wide_bundle, "none") > 32 * MEBIBYTE
    assert in_a_fresh_process(growth_by_a_second_level, wide_bundle, tmp_path) < 16 * MEBIBYTE


def loads_and_unloads(bundle: Path, cache: Path | str) -> list[tuple[int, int]]:
    """Loads and unloads a second level three times. Returns by how many bytes the process has grown
    after each load and each unload."""
    host = host_of(bundle, cache, lazy=True, default_level="h12")
    use(host, "h12")
    host.load("full")
    host.unload("full")  # libraries have now allocated what they allocate once
    before = settled(bundle, cache)
    grown = []
    for _ in range(3):
        host.load("full")
        assert use(host, "full")
        loaded = held(bundle, cache)
        host.unload("full")
        grown.append((loaded - before, held(bundle, cache) - before))
    host.close()
    return grown


@pytest.mark.slow
@on_linux
@pytest.mark.parametrize("shared", [True, False])
def test_unloading_gives_memory_back(wide_bundle: Path, tmp_path: Path, shared: bool) -> None:
    grown = in_a_fresh_process(loads_and_unloads, wide_bundle, tmp_path if shared else "none")
    assert all(unloaded < 24 * MEBIBYTE for _, unloaded in grown)  # the heap keeps up to 16, however often it is done
    if not shared:
        assert all(loaded > 32 * MEBIBYTE for loaded, _ in grown)


def test_the_sessions_of_an_unloaded_level_are_freed(lively_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[LevelSessions]] = []
    plain = LevelSessions.open

    def open_and_note(*arguments: object, **named: object) -> LevelSessions:
        opened = plain(*arguments, **named)  # type: ignore[arg-type]  # as given
        made.append(weakref.ref(opened))
        return opened

    monkeypatch.setattr(LevelSessions, "open", open_and_note)
    host = host_of(lively_bundle, "auto", levels=("full", "h5"))
    assert len(made) == 2
    use(host, "h5")
    host.unload("h5")
    assert [sessions() is None for sessions in made] == [False, True]
    host.reload()
    for freed in host.cache.leaving():
        freed.result(GUARD_S)
    assert made[0]() is None
    host.close()


def test_a_lazy_level_is_loaded_alone(lively_bundle: Path) -> None:
    host = host_of(lively_bundle, "auto", lazy=True, default_level="h12")
    loaded = {s.name: s.memory for s in host.status().levels if s.loaded}
    assert loaded.keys() == {"h12"}
    assert loaded["h12"] is not None
    assert loaded["h12"].shared == 0  # no other level is loaded
    host.load("h5")
    memory = {s.name: s.memory for s in host.status().levels}
    for name in ("h12", "h5"):
        held = memory[name]
        assert held is not None
        assert held.own > 0
        assert held.shared > 0
    assert memory["full"] is None
    host.close()


def test_the_reported_memory_is_what_sessions_hold(lively_bundle: Path) -> None:
    host = host_of(lively_bundle, "auto", levels=("full", "h12", "h5"))
    weights = {}
    for level in ("full", "h12", "h5"):
        with Translator(lively_bundle, level, device="cpu", threads=1) as translator:
            weights[level] = translator.weights
    for status in host.status().levels:
        if status.loaded:
            held = weights[status.name]
            others = set().union(*(w for name, w in weights.items() if name != status.name))
            own = sum(size for file, size in held.items() if file not in others)
            assert status.memory == LevelBytes(own, sum(held.values()) - own)
    host.close()


def test_levels_of_a_bundle_share_one_tokenizer(lively_bundle: Path) -> None:
    with (
        Translator(lively_bundle, "h12", device="cpu", threads=1) as half,
        Translator(lively_bundle, "h5", device="cpu", threads=1) as few,
    ):
        assert half._tokenizer is few._tokenizer


def measured_around_an_allocation() -> tuple[int, int, int]:
    """Bytes of the process before, with and after 512 MiB. Those of mapped files are left out: the share of a library
    that this process has changes when another process begins or ends."""

    def own_bytes() -> int:
        mapped = psutil.Process().memory_maps(grouped=True)
        return process_bytes() - sum(m.pss - m.anonymous for m in mapped)

    before = own_bytes()
    ballast = np.ones(512 * MEBIBYTE, np.uint8)
    during = own_bytes()
    del ballast
    return before, during, own_bytes()


@on_linux
def test_process_bytes_follow_allocations() -> None:
    before, during, after = in_a_fresh_process(measured_around_an_allocation)
    tolerance = 128 * MEBIBYTE  # the share of libraries may change between the two readings of one number
    assert abs(during - before - 512 * MEBIBYTE) < tolerance
    assert abs(after - before) < tolerance


def working_memory(bundle: Path) -> tuple[int, int]:
    """Returns the bytes by which a large batch makes sessions grow, and those left after `release_memory`."""
    manifest = read_manifest(bundle)
    level = manifest.level("full")
    sessions = LevelSessions.open(bundle, manifest.architecture, level, Device("cpu"), 1)
    before = settled()
    expected, _ = sessions.encode([[5, 6, 7, 0]])
    sessions.encode([[5] * 90] * 32)
    grown = held() - before
    sessions.release_memory()
    released = held() - before
    again, _ = sessions.encode([[5, 6, 7, 0]])
    assert all((again[name] == expected[name]).all() for name in expected)
    return grown, released


@on_linux
def test_working_memory_is_released(wide_bundle: Path) -> None:
    grown, released = in_a_fresh_process(working_memory, wide_bundle)
    assert grown > 32 * MEBIBYTE  # activations of 32 × 90 × 4096 numbers
    assert released < 16 * MEBIBYTE


def test_a_file_of_two_levels_is_shared() -> None:
    split = byte_shares(
        {"full": {"a": 1, "b": 10, "c": 100}, "half": {"b": 10, "c": 100, "d": 1000}, "other": {"c": 100}}
    )
    assert split == {"full": LevelBytes(1, 110), "half": LevelBytes(1000, 110), "other": LevelBytes(0, 100)}


def test_bytes_on_disk(lively_bundle: Path) -> None:
    manifest = read_manifest(lively_bundle)
    split = disk_shares(lively_bundle, manifest)
    for level in manifest.levels:
        assert split[level.name].own + split[level.name].shared == level.bytes
        assert 0 < split[level.name].own < level.bytes
    files = {file for level in manifest.levels for file in level.files}
    once = sum((lively_bundle / file).stat().st_size for file in files)
    assert sum(size.own for size in split.values()) < once < sum(level.bytes for level in manifest.levels)
