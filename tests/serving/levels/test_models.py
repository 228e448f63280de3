"""Several models: which one a request gets, what is loaded, and what is unloaded for want of memory or of use."""

from __future__ import annotations

import shutil
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.serving.fakes import GUARD_S, FakeClock, FakeFactory, write_bundle
from tests.serving.levels import test_choosing

from hmc.artifact import InvalidArtifactError, InvalidRequestError, Manifest, read_manifest
from hmc.artifact.bundle.manifest import write_manifest
from hmc.artifact.errors import (
    FailedPreconditionError,
    LevelNotLoadedError,
    MemoryInUseError,
    ModelNotFoundError,
    UnavailableError,
)
from hmc.serving import Selector
from hmc.serving.levels.host import ModelHost, name_of
from hmc.serving.levels.memory import CacheEntry, Capacity
from hmc.serving.levels.models import HostSettings, Models, parse_models

SHARED, FULL, H12, H6 = 100_100, 40_000, 30_000, 20_000
"""Bytes of the fake levels: what all of them share, with a little for their files, and what each has alone."""


class HeavyFactory(FakeFactory):
    """Levels whose weights are much larger than the files of fake bundles. All share a part."""

    def __call__(self, bundle: Path, manifest: Manifest, level: str) -> Any:
        made = super().__call__(bundle, manifest, level)
        made.weights = {
            name if name == "shared" else f"{manifest.version} {name}": 1000 * size
            for name, size in made.weights.items()
        }
        return made


@pytest.fixture
def factory() -> HeavyFactory:
    return HeavyFactory()


@pytest.fixture
def bundles(tmp_path: Path) -> dict[str, Path]:
    pairs = {"en-de": ("en", "de"), "fr-en": ("fra", "eng"), "again": ("en", "de")}
    return {name: write_bundle(tmp_path / name, version=name, languages=pair) for name, pair in pairs.items()}


def opened(
    bundles: dict[str, Path], factory: FakeFactory, clock: FakeClock | None = None, **settings: object
) -> Models:
    models = Models.open(bundles, factory, HostSettings(**settings), clock or FakeClock())  # type: ignore[arg-type]
    models.start()
    return models


def loaded(models: Models) -> dict[str, list[str]]:
    return {s.model: [x.name for x in s.levels if x.loaded] for s in models.statuses()}


def use(models: Models, model: str, level: str) -> None:
    """What a request does with a lazy level."""
    host = models.named(model)
    try:
        host.lease(Selector(name=level)).__exit__(None, None, None)
    except LevelNotLoadedError:
        host.load(level)
        host.lease(Selector(name=level)).__exit__(None, None, None)


@pytest.mark.parametrize(
    ("selector", "model"),
    [
        (Selector(), "en-de"),
        (Selector(name="h6"), "en-de"),
        (Selector(model="again"), "again"),
        (Selector(source_language="fr"), "fr-en"),
        (Selector(target_language="eng"), "fr-en"),
        (Selector(source_language="en"), "en-de"),
        (Selector(source_language="en-GB", target_language="de-AT"), "en-de"),
        (Selector(model="again", target_language="deu"), "again"),
    ],
)
def test_a_request_finds_its_model(
    bundles: dict[str, Path], factory: FakeFactory, selector: Selector, model: str
) -> None:
    assert Models.open(bundles, factory, HostSettings()).find(selector)[0].name == model


def test_what_is_not_there_is_said_with_what_is(bundles: dict[str, Path], factory: FakeFactory) -> None:
    models = Models.open(bundles, factory, HostSettings())
    with pytest.raises(ModelNotFoundError, match="unknown model 'x'; this server has: en-de, fr-en, again"):
        models.find(Selector(model="x"))
    with pytest.raises(ModelNotFoundError, match=r"this server has en-de: en → de; fr-en: fr → en"):
        models.find(Selector(target_language="it"))
    with pytest.raises(ModelNotFoundError, match=r"from fr to any language; this server has en-de: en → de$"):
        models.find(Selector(model="en-de", source_language="fr"))
    with pytest.raises(InvalidRequestError, match="source_language 'a b'"):
        models.find(Selector(source_language="a b"))


def test_every_model_loads_its_levels(bundles: dict[str, Path], factory: FakeFactory) -> None:
    assert loaded(opened(bundles, factory)) == {name: ["full", "h12", "h6"] for name in bundles}


def test_levels_are_named_with_their_model(bundles: dict[str, Path], factory: FakeFactory) -> None:
    models = opened(bundles, factory, levels=("en-de/h6", "again/h12"), default_level="fr-en/h12")
    assert loaded(models) == {"en-de": ["full", "h6"], "fr-en": ["h12"], "again": ["full", "h12"]}
    with pytest.raises(InvalidArtifactError, match="no model is called 'x'; this server has en-de, fr-en"):
        Models.open(bundles, factory, HostSettings(levels=("x/full",)))
    with pytest.raises(InvalidArtifactError, match="h6, h12 are several of model en-de"):
        Models.open(bundles, factory, HostSettings(default_level="en-de/h6,en-de/h12"))


def test_all_bundles_that_cannot_be_served_are_named(bundles: dict[str, Path], factory: FakeFactory) -> None:
    for name in ("en-de", "again"):
        (bundles[name] / "h6" / "encoder.onnx").unlink()
    with pytest.raises(InvalidArtifactError, match=r"(?s)/en-de.*/again"):
        Models.open(bundles, factory, HostSettings())


def test_lazy_models_load_with_their_first_request(bundles: dict[str, Path], factory: FakeFactory) -> None:
    models = Models.open(bundles, factory, HostSettings(lazy=True, levels=("again/h6",)))
    with pytest.raises(UnavailableError, match="still loading"):
        models.named("fr-en").lease()
    models.start()
    assert loaded(models) == {"en-de": ["full"], "fr-en": [], "again": ["full", "h6"]}
    host = models.named("fr-en")
    for selector in (Selector(), Selector(auto=True), Selector(max_heads=24)):
        with pytest.raises(LevelNotLoadedError) as raised:
            host.lease(selector)
        assert raised.value.level == "full"
    host.load("full")
    with host.lease() as lease:
        assert (lease.model, lease.level.name) == ("fr-en", "full")


# ---- memory ----


def test_the_least_recently_used_idle_level_makes_room(bundles: dict[str, Path], factory: FakeFactory) -> None:
    clock = FakeClock()
    models = opened(bundles, factory, clock, lazy=True, memory=SHARED + FULL + FULL + H12)
    for level in ("h12", "h6"):
        clock.now += 1
        use(models, "fr-en", level)
    clock.now += 1
    use(models, "fr-en", "h12")
    use(models, "fr-en", "full")  # it needs 40, and 20 are free: h6 is the least recently used, and full of en-de stays
    assert loaded(models) == {"en-de": ["full"], "fr-en": ["full", "h12"], "again": []}
    assert factory["h6"].closed == "drained"


def test_a_level_that_a_request_takes_meanwhile_stays_and_another_goes() -> None:
    capacity, loaded, gone = Capacity(100), dict[str, CacheEntry](), list[str]()
    freed = Future[None]()
    freed.set_result(None)

    def leave(name: str) -> list[Future[None]]:
        if name == "first":
            loaded["second"] = replace(loaded["second"], in_use=True)  # while `first` is waited for
        elif loaded[name].in_use:
            return []
        gone.append(name)
        del loaded[name]
        return [freed]

    for used, (name, size) in enumerate({"first": 30, "second": 30, "third": 40}.items()):
        loaded[name] = CacheEntry(
            name, test_choosing.level(name, 1), {name: size}, float(used), False, False, partial(leave, name)
        )
    capacity.join(lambda: list(loaded.values()))
    capacity.clear(test_choosing.level("new", 1), Path(), "version", "cpu", {"new": 50})
    assert (gone, list(loaded)) == (["first", "third"], ["second"])


def test_weights_that_two_models_share_count_once(bundles: dict[str, Path], factory: FakeFactory) -> None:
    models = opened(bundles, factory, lazy=True, memory=SHARED + FULL + FULL)
    use(models, "fr-en", "full")
    assert loaded(models) == {"en-de": ["full"], "fr-en": ["full"], "again": []}


def test_a_level_that_cannot_fit_is_refused_and_nothing_is_lost(bundles: dict[str, Path], factory: FakeFactory) -> None:
    models = opened(bundles, factory, lazy=True, memory=SHARED + FULL + H6)
    use(models, "fr-en", "h6")
    with pytest.raises(FailedPreconditionError, match=r"(?s)'h12' does not fit.* beside en-de/full, which stay loaded"):
        use(models, "again", "h12")
    made = len(factory.made)
    assert factory["h12"].closed == "cancelled"
    with pytest.raises(FailedPreconditionError, match="does not fit"):
        use(models, "again", "h12")
    assert len(factory.made) == made  # its bytes are known now: it is not even tried
    assert loaded(models) == {"en-de": ["full"], "fr-en": ["h6"], "again": []}


@pytest.mark.parametrize("shared", [True, False])
def test_files_that_another_model_holds_count_if_weights_are_not_shared(
    bundles: dict[str, Path], factory: FakeFactory, shared: bool
) -> None:
    """Such a level is refused before it is opened, and not after it has taken the memory."""
    copy = bundles["en-de"].parent / "copy"
    shutil.copytree(bundles["en-de"], copy)
    manifest = read_manifest(copy)
    manifest.version = "copy"  # of which no level has been measured
    write_manifest(manifest, copy)
    twice = {"one": bundles["en-de"], "other": copy}
    models = opened(twice, factory, lazy=True, memory=SHARED + FULL - 100, shared=shared)  # no place for files
    with pytest.raises(FailedPreconditionError, match="does not fit"):
        use(models, "other", "full")
    assert len(factory.made) == 1 + shared


def test_levels_in_use_stay(bundles: dict[str, Path], factory: FakeFactory) -> None:
    models = opened(bundles, factory, lazy=True, memory=SHARED + FULL + H12)
    host = models.named("fr-en")
    host.load("h12")
    with host.lease(Selector(name="h12")):
        with pytest.raises(MemoryInUseError, match=r"while fr-en/h12 are in use: .* try again later"):
            use(models, "again", "h6")
        assert loaded(models)["fr-en"] == ["h12"]
    with host.cache.wanted("h12"), pytest.raises(MemoryInUseError, match="in use"):
        use(models, "again", "h6")
    use(models, "again", "h6")
    assert loaded(models) == {"en-de": ["full"], "fr-en": [], "again": ["h6"]}


def test_a_level_that_left_counts_while_a_call_holds_it(bundles: dict[str, Path], factory: FakeFactory) -> None:
    """Its weights are in memory until the call ends, so nothing may take their place."""
    models = opened(bundles, factory, lazy=True, memory=SHARED + FULL + H12)
    host = models.named("fr-en")
    host.load("h12")
    with host.lease(Selector(name="h12")):
        _, freed = host.begin_unload("h12")
        with pytest.raises(MemoryInUseError, match="while fr-en/h12 are in use"):
            use(models, "again", "h6")
    for future in freed:
        future.result(GUARD_S)
    use(models, "again", "h6")
    assert loaded(models) == {"en-de": ["full"], "fr-en": [], "again": ["h6"]}


def test_a_start_that_does_not_fit_fails(bundles: dict[str, Path], factory: FakeFactory) -> None:
    with pytest.raises(FailedPreconditionError, match=r"'h6' does not fit into `memory` of 0\.2 MiB beside en-de/full"):
        opened({"en-de": bundles["en-de"]}, factory, memory=SHARED + FULL + H12)
    assert all(t.closed for t in factory.made)


def test_a_reload_that_does_not_fit_leaves_the_bundle(bundles: dict[str, Path], factory: FakeFactory) -> None:
    models = opened(bundles, factory, lazy=True, memory=SHARED + FULL)
    host = models.first
    with pytest.raises(FailedPreconditionError, match="does not fit"):
        host.reload(write_bundle(bundles["en-de"].parent / "new", version="new", levels=("h12", "h6")))
    with host.lease() as lease:
        assert (lease.level.name, lease.bundle_version) == ("full", "en-de")
    assert loaded(models)["en-de"] == ["full"]


# ---- idle levels ----


def test_idle_levels_are_unloaded_after_their_time(bundles: dict[str, Path], factory: FakeFactory) -> None:
    clock = FakeClock()
    models = opened(bundles, factory, clock, lazy=True)
    for model, level in (("en-de", "h6"), ("fr-en", "full"), ("fr-en", "h12")):
        use(models, model, level)
    clock.now = 50
    with models.named("fr-en").lease(Selector(name="h12")):
        clock.now = 99
        assert models.unload_idle(100) == []
        clock.now = 100
        for freed in models.unload_idle(100):
            freed.result(GUARD_S)
        # The default level that was loaded at the start stays; that of another model goes; h12 is in use.
        assert loaded(models) == {"en-de": ["full"], "fr-en": ["h12"], "again": []}
    assert models.unload_idle(100) == []  # its last request ended just now
    clock.now = 200
    assert len(models.unload_idle(100)) == 1
    assert loaded(models)["fr-en"] == []


def test_without_lazy_nothing_is_idle(bundle: Path, factory: FakeFactory) -> None:
    clock = FakeClock()
    host = ModelHost(bundle, factory, clock=clock)
    host.start()
    clock.now = 1e9
    assert host.unload_idle(1) == []


def test_another_default_level_stays(bundle: Path, factory: FakeFactory) -> None:
    clock = FakeClock()
    host = ModelHost(bundle, factory, lazy=True, clock=clock)
    host.start()
    with pytest.raises(LevelNotLoadedError, match="'h6' is not loaded"):
        host.set_default("h6")
    host.load("h6")
    assert host.set_default("h6").is_default
    with host.lease() as lease:
        assert lease.level.name == "h6"
    clock.now = 10
    for freed in host.unload_idle(5):
        freed.result(GUARD_S)
    assert [x.name for x in host.status().levels if x.loaded] == ["h6"]
    host.reload()
    assert [x.name for x in host.status().levels if x.is_default] == ["full"]


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    return write_bundle(tmp_path / "a"), write_bundle(tmp_path / "b", languages=("fr", "en"))


def test_names_in_their_order(two: tuple[Path, Path]) -> None:
    first, second = two
    assert list(parse_models([f"x={second}", f"a.b-c_1={first}"]).items()) == [("x", second), ("a.b-c_1", first)]
    assert list(parse_models([str(second), str(first)])) == ["fr-en", "en-de"]


def test_one_bundle_without_a_name_is_left_to_the_host(tmp_path: Path) -> None:
    assert parse_models([str(tmp_path / "missing")]) == {"": tmp_path / "missing"}


def test_a_folder_with_an_equals_sign_is_written_with_a_path(tmp_path: Path) -> None:
    assert parse_models([f"{tmp_path}/a=b"]) == {"": tmp_path / "a=b"}
    assert parse_models(["./a=b"]) == {"": Path("./a=b")}


def test_all_problems_are_said_at_once(two: tuple[Path, Path], tmp_path: Path) -> None:
    first, second = two
    given = [str(first), f"en-de={second}", f"en de={first}", "=x", "y=", f"gone={tmp_path / 'gone'}"]
    with pytest.raises(InvalidArtifactError) as raised:
        parse_models(given)
    said = "\n".join(raised.value.problems)
    assert f"'en-de' is the name of {first} and {second}" in said
    assert "'en de=" in said
    assert "a model's name has letters, digits" in said
    assert "'y=' names no bundle" in said
    assert f"{tmp_path / 'gone'}: " in said


def test_a_name_is_made_of_any_languages(tmp_path: Path) -> None:
    assert name_of(read_manifest(write_bundle(tmp_path / "a", languages=("zh Hans", "de")))) == "zh_Hans-de"
    assert name_of(read_manifest(write_bundle(tmp_path / "b", languages=("", "")))) == "model"
