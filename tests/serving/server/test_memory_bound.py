"""`--memory` with real weights: idle levels give way before the bound is crossed, and nothing is loaded beyond it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hmc.artifact import read_manifest
from hmc.artifact.errors import FailedPreconditionError
from hmc.engine.runtime.sessions import LevelSessions
from hmc.serving import DecodeOptions
from hmc.serving.client import Client
from hmc.serving.levels.memory import union_bytes
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings

SHORT = DecodeOptions(beam_size=1, max_length=8)
FULL, LARGE, MIDDLE, SMALL = "full", "h12", "full-int8", "h12-int8"
Weights = dict[str, dict[str, int]]


def settings(cache: str, memory: int | None = None) -> ServerSettings:
    limit = None if memory is None else str(memory)
    return ServerSettings(port=0, device="cpu", threads=1, lazy=True, levels=(FULL,), cache=cache, memory=limit)


def held(running: BackgroundServer) -> Weights:
    """Loaded level → its weights."""
    return {each.level.name: dict(each.weights) for each in running.host.cache.entries()}


def missing(bundle: Path, name: str, *beside: str, cache: str) -> int:
    """Bytes of the files that a level needs beside others: what it is taken to need before it was ever loaded. Without
    a cache it shares nothing, so it needs all."""
    manifest = read_manifest(bundle)
    shared = beside if cache != "none" else ()
    there = {digest for other in shared for digest in manifest.level(other).files.values()}
    files = {digest: file for file, digest in manifest.level(name).files.items() if digest not in there}
    return sum((bundle / file).stat().st_size for file in files.values())


def together(weights: Weights, *names: str) -> int:
    return union_bytes(weights[name] for name in names)


@pytest.fixture(scope="module", params=["auto", "none"])
def cache(request: pytest.FixtureRequest) -> str:
    """With a cache levels share weights in memory, without one they do not."""
    return str(request.param)


@pytest.fixture(scope="module")
def weights(lively_bundle: Path, cache: str) -> Weights:
    """Every level's weights in memory, without a bound."""
    with BackgroundServer(lively_bundle, settings(cache)) as running, Client(running.address) as client:
        for level in (FULL, LARGE, MIDDLE, SMALL):
            client.translate(["A dog."], level, SHORT)
        return held(running)


def test_idle_levels_give_way_before_the_bound_is_crossed(lively_bundle: Path, cache: str, weights: Weights) -> None:
    bound = together(weights, FULL, LARGE) + missing(lively_bundle, SMALL, FULL, LARGE, cache=cache)
    assert (
        together(weights, FULL, LARGE, SMALL) + missing(lively_bundle, MIDDLE, FULL, LARGE, SMALL, cache=cache) > bound
    )
    with BackgroundServer(lively_bundle, settings(cache, bound)) as running, Client(running.address) as client:

        def use(level: str) -> set[str]:
            assert client.translate(["A dog."], level, SHORT).level == level
            now = held(running)
            assert together(now, *now) <= bound
            assert set(now) == {each.name for each in client.levels().levels if each.loaded}
            return set(now)

        assert use(LARGE) == {FULL, LARGE}
        assert use(SMALL) == {FULL, LARGE, SMALL}
        assert use(MIDDLE) >= {FULL, MIDDLE}
        assert LARGE not in held(running)
        for level in (LARGE, SMALL, MIDDLE, FULL, LARGE):
            assert use(level) >= {FULL, level}


@pytest.mark.parametrize("cache", ["auto"], indirect=True)
def test_nothing_is_loaded_beyond_the_bound(
    lively_bundle: Path, cache: str, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A level that does not fit beside the default level is refused before it is opened, and both others stay."""
    small, *_, large = sorted((LARGE, MIDDLE, SMALL), key=lambda name: missing(lively_bundle, name, FULL, cache=cache))
    alone = together(weights, FULL)
    bound = max(
        missing(lively_bundle, FULL, cache=cache),
        alone + missing(lively_bundle, small, FULL, cache=cache),
        together(weights, FULL, small),
    )
    assert alone + missing(lively_bundle, large, FULL, cache=cache) > bound
    opened, load = list[str](), LevelSessions.open

    def noted(bundle: Path, architecture: object, level: object, *rest: object, **more: object) -> object:
        opened.append(level.name)  # type: ignore[attr-defined]
        return load(bundle, architecture, level, *rest, **more)  # type: ignore[arg-type]

    with BackgroundServer(lively_bundle, settings(cache, bound)) as running, Client(running.address) as client:
        monkeypatch.setattr(LevelSessions, "open", noted)
        assert client.translate(["A dog."], small, SHORT).level == small
        assert opened == [small]
        for _ in range(2):
            with pytest.raises(FailedPreconditionError, match=rf"'{large}' does not fit into `memory` .* missing"):
                client.translate(["A dog."], large, SHORT)
            now = held(running)
            assert set(now) == {FULL, small}
            assert together(now, *now) <= bound
        assert opened == [small]
        assert client.translate(["A dog."], None, SHORT).level == FULL
        assert client.translate(["A dog."], small, SHORT).level == small
