"""What levels cost in memory: loaded when asked for, once for all of them, and given back."""

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
import pytest
from tests.tiny import SENTENCES, tiny_architecture, tiny_checkpoint_at

from hmc.artifact.bundle import read_manifest
from hmc.serving.host import ModelHost
from hmc.serving.memory import process_bytes, return_free_memory
from hmc.serving.options import DecodeOptions
from hmc.serving.selection import Selector
from hmc.serving.server.app import model_host
from hmc.serving.server.settings import ServerSettings
from hmc.serving.sessions import Device, LevelSessions
from hmc.serving.shares import Shares, disk_shares, shares
from hmc.serving.translator import Translator

MEBIBYTE = 2**20
Told = TypeVar("Told")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the proportional set size is Linux's")


@pytest.fixture(scope="module")
def wide_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Levels full and h12 with 32 MiB of feed-forward weights in common, and little that is a level's own."""
    from hmc.compiler.bundle_builder import LevelRequest
    from hmc.compiler.bundle_writer import compile_bundle

    folder = tmp_path_factory.mktemp("wide")
    tiny_checkpoint_at(folder / "checkpoint", arch=tiny_architecture(d_model=256, ffn_dim=4096))
    requests = [LevelRequest(folder / "checkpoint", heads) for heads in (24, 12)]
    compile_bundle(requests, folder / "bundle")
    return folder / "bundle"


def host_of(bundle: Path, cache: str | Path, **settings: object) -> ModelHost:
    given = ServerSettings(device="cpu", threads=1, cache=cache, **settings)  # type: ignore[arg-type]  # as tests give
    host = model_host(bundle, given)
    host.start()
    return host


def use(host: ModelHost, level: str) -> list[str]:
    with host.lease(Selector(name=level)) as lease:
        futures = [lease.submit(text, DecodeOptions(max_length=8)) for text in SENTENCES[:4]]
        return [future.result().text for future in futures]


def settled() -> int:
    gc.collect()
    return_free_memory()
    return process_bytes()


def in_a_fresh_process(measure: Callable[..., Told], *arguments: Any) -> Told:
    """What `measure` gives where no other test has left its holes in the heap."""
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=fresh) as process:
        return process.submit(measure, *arguments).result(timeout=120)


def growth_by_a_second_level(bundle: Path, cache: Path | str) -> int:
    """Bytes by which a process that serves one level grows when it serves another one too."""
    host = host_of(bundle, cache, levels=("full",))
    use(host, "full")
    before = settled()
    host.load("h12")
    use(host, "h12")
    grown = settled() - before
    host.close()
    return grown


@pytest.mark.slow
@on_linux
def test_a_second_level_costs_only_what_is_its_own(wide_bundle: Path, tmp_path: Path) -> None:
    assert in_a_fresh_process(growth_by_a_second_level, wide_bundle, "none") > 32 * MEBIBYTE
    assert in_a_fresh_process(growth_by_a_second_level, wide_bundle, tmp_path) < 16 * MEBIBYTE


def loads_and_unloads(bundle: Path, cache: Path | str) -> list[tuple[int, int]]:
    """Bytes over those of a process with one level: with a second one loaded, and unloaded again, three times."""
    host = host_of(bundle, cache, lazy=True, default_level="h12")
    use(host, "h12")
    host.load("full")
    host.unload("full")  # libraries have now set up what they set up once
    before = settled()
    told = []
    for _ in range(3):
        host.load("full")
        assert use(host, "full")
        loaded = process_bytes()
        host.unload("full")
        told.append((loaded - before, process_bytes() - before))
    host.close()
    return told


@pytest.mark.slow
@on_linux
@pytest.mark.parametrize("shared", [True, False])
def test_unloading_gives_memory_back(wide_bundle: Path, tmp_path: Path, shared: bool) -> None:
    told = in_a_fresh_process(loads_and_unloads, wide_bundle, tmp_path if shared else "none")
    assert all(unloaded < 16 * MEBIBYTE for _, unloaded in told)
    if not shared:
        assert all(loaded > 32 * MEBIBYTE for loaded, _ in told)


def test_an_unloaded_level_is_gone(lively_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    for thread in host._retirement.threads():
        thread.join(20)
    assert made[0]() is None
    host.close()


def test_a_lazy_level_opens_at_its_first_use_and_alone(lively_bundle: Path) -> None:
    host = host_of(lively_bundle, "auto", lazy=True, default_level="h12")
    loaded = {s.level.name: s.memory for s in host.status().levels if s.loaded}
    assert loaded.keys() == {"h12"}
    assert loaded["h12"] is not None
    assert loaded["h12"].shared == 0  # with no other
    host.load("h5")
    told = {s.level.name: s.memory for s in host.status().levels}
    for name in ("h12", "h5"):
        held = told[name]
        assert held is not None
        assert held.own > 0
        assert held.shared > 0
    assert told["full"] is None
    host.close()


def test_what_is_told_is_what_sessions_hold(lively_bundle: Path) -> None:
    host = host_of(lively_bundle, "auto", levels=("full", "h12", "h5"))
    weights = {}
    for level in ("full", "h12", "h5"):
        with Translator(lively_bundle, level, device="cpu", threads=1) as translator:
            weights[level] = translator.weights
    for status in host.status().levels:
        if status.loaded:
            held = weights[status.level.name]
            others = set().union(*(w for name, w in weights.items() if name != status.level.name))
            own = sum(size for file, size in held.items() if file not in others)
            assert status.memory == Shares(own, sum(held.values()) - own)
    host.close()


def test_shares() -> None:
    told = shares({"full": {"a": 1, "b": 10, "c": 100}, "half": {"b": 10, "c": 100, "d": 1000}, "other": {"c": 100}})
    assert told == {"full": Shares(1, 110), "half": Shares(1000, 110), "other": Shares(0, 100)}


def test_shares_on_disk(lively_bundle: Path) -> None:
    manifest = read_manifest(lively_bundle)
    told = disk_shares(lively_bundle, manifest)
    for level in manifest.levels:
        assert told[level.name].own + told[level.name].shared == level.bytes
        assert 0 < told[level.name].own < level.bytes
    files = {file for level in manifest.levels for file in level.files}
    once = sum((lively_bundle / file).stat().st_size for file in files)
    assert sum(shares.own for shares in told.values()) < once < sum(level.bytes for level in manifest.levels)


def test_levels_of_a_bundle_have_one_tokenizer(lively_bundle: Path) -> None:
    with (
        Translator(lively_bundle, "h12", device="cpu", threads=1) as half,
        Translator(lively_bundle, "h5", device="cpu", threads=1) as few,
    ):
        assert half._tokenizer is few._tokenizer


@on_linux
def test_process_bytes_follow_what_is_allocated() -> None:
    before = settled()
    ballast = np.ones(256 * MEBIBYTE, np.uint8)
    assert 200 * MEBIBYTE < process_bytes() - before < 300 * MEBIBYTE
    ballast = np.zeros(0, np.uint8)
    assert settled() - before < 50 * MEBIBYTE
    assert not len(ballast)


def working_memory(bundle: Path) -> tuple[int, int]:
    """Bytes by which sessions grow with a large batch, and what is left of them after a rest."""
    manifest = read_manifest(bundle)
    level = manifest.level("full")
    sessions = LevelSessions.open(bundle, manifest.architecture, level, Device("cpu"), 1)
    before = settled()
    expected, _ = sessions.encode([[5, 6, 7, 0]])
    sessions.encode([[5] * 90] * 32)
    grown = process_bytes() - before
    sessions.rest()
    rested = process_bytes() - before
    again, _ = sessions.encode([[5, 6, 7, 0]])
    assert all((again[name] == expected[name]).all() for name in expected)
    return grown, rested


@on_linux
def test_rest_gives_working_memory_back(wide_bundle: Path) -> None:
    grown, rested = in_a_fresh_process(working_memory, wide_bundle)
    assert grown > 32 * MEBIBYTE  # activations of 32 × 90 × 4096 numbers
    assert rested < 16 * MEBIBYTE
