"""Loading, unloading and reloading, without any transport."""

import gc
import logging
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.manifests import changed_manifest
from tests.serving.fakes import GUARD_S, FakeClock, FakeFactory, FakeTranslator, eventually, write_bundle

from hmc.artifact import InvalidArtifactError
from hmc.artifact.errors import (
    DeviceUnavailableError,
    FailedPreconditionError,
    LevelNotFoundError,
    LevelNotLoadedError,
    UnavailableError,
)
from hmc.engine.requests.caller import Priority
from hmc.serving import DecodeOptions, Selector
from hmc.serving.levels.cache import collect
from hmc.serving.levels.controller import AutoPolicy
from hmc.serving.levels.host import ModelHost
from hmc.serving.levels.latency import FEW_REQUESTS
from hmc.serving.levels.slots import LevelStatus
from hmc.serving.requests.results import LatencySummary

OPTIONS = DecodeOptions()


def started(bundle: Path, factory: FakeFactory, **settings: Any) -> ModelHost:
    host = ModelHost(bundle, factory, **settings)
    host.start()
    return host


def loaded(host: ModelHost) -> list[str]:
    return [x.name for x in host.status().levels if x.loaded]


@pytest.fixture
def host(bundle: Path, factory: FakeFactory) -> ModelHost:
    return started(bundle, factory)


def chosen(host: ModelHost, selector: Selector, priority: Priority = Priority.INTERACTIVE) -> str:
    with host.lease(selector, priority=priority) as lease:
        return lease.level.name


def test_start_loads_and_warms_the_default_first(host: ModelHost, factory: FakeFactory) -> None:
    assert [t.level for t in factory.made] == ["full", "h12", "h6"]
    assert all(t.warm for t in factory.made)
    assert host.status().device == "cpu"


def test_only_the_levels_asked_for_and_the_default(bundle: Path, factory: FakeFactory) -> None:
    host = started(bundle, factory, levels=["h6"], default_level="h12")
    assert loaded(host) == ["h12", "h6"]
    with host.lease() as lease:
        assert lease.level.name == "h12"
    with pytest.raises(LevelNotLoadedError, match=r"'full' is not loaded; load it with `hmc admin load`"):
        host.lease(Selector(name="full"))
    assert chosen(host, Selector(max_heads=100)) == "h12"


def test_unknown_names_are_errors_at_once(bundle: Path, factory: FakeFactory) -> None:
    with pytest.raises(LevelNotFoundError, match="this bundle has: full, h12, h6"):
        ModelHost(bundle, factory, levels=["h7"])
    with pytest.raises(LevelNotFoundError, match="h7"):
        ModelHost(bundle, factory, default_level="h7")


def test_lazy_chooses_among_all(bundle: Path, factory: FakeFactory) -> None:
    host = started(bundle, factory, lazy=True)
    assert loaded(host) == ["full"]
    with pytest.raises(LevelNotLoadedError) as raised:
        host.lease(Selector(max_heads=12))
    assert raised.value.level == "h12"


def test_lazy_chooses_only_what_can_run(tmp_path: Path, factory: FakeFactory) -> None:
    bundle = write_bundle(tmp_path / "b")
    with changed_manifest(bundle) as raw:
        raw["levels"][0]["precision"] = raw["levels"][1]["precision"] = "fp16"
    host = started(bundle, factory, lazy=True, device="cpu")
    assert chosen(host, Selector(max_heads=24)) == "h6"
    # With `auto`, a missing device is found by trying it.
    anywhere = started(bundle, factory, lazy=True, default_level="h6")
    factory.fail["full"] = factory.fail["h12"] = DeviceUnavailableError("no cuda")
    for name, heads in (("full", 24), ("h12", 12)):
        with pytest.raises(LevelNotLoadedError):
            anywhere.lease(Selector(max_heads=heads))
        with pytest.raises(DeviceUnavailableError):
            anywhere.load(name)
    assert chosen(anywhere, Selector(max_heads=24)) == "h6"
    factory.fail.clear()  # such as a GPU that has free memory again
    anywhere.load("full")
    assert chosen(anywhere, Selector(max_heads=24)) == "full"


def test_no_lease_before_start_or_after_close(bundle: Path, factory: FakeFactory) -> None:
    host = ModelHost(bundle, factory)
    with pytest.raises(UnavailableError, match="still loading"):
        host.lease()
    host.start()
    host.close()
    with pytest.raises(UnavailableError, match="shutting down"):
        host.lease()
    assert {t.closed for t in factory.made} == {"drained"}


@pytest.mark.parametrize(
    ("selector", "level"),
    [
        (Selector(), "full"),
        (Selector(name="full"), "full"),
        (Selector(name="h6"), None),
        (Selector(max_heads=24), "full"),
        (Selector(max_heads=12), None),
        (Selector(max_bleu_drop=0.1), "full"),
        (Selector(max_bleu_drop=1.0), None),
        (Selector(latency_budget_ms=40), "full"),
        (Selector(latency_budget_ms=10), None),
        (Selector(auto=True), "full"),
    ],
)
def test_a_request_gets_no_other_level_while_the_rest_load(
    bundle: Path, factory: FakeFactory, selector: Selector, level: str | None
) -> None:
    host = ModelHost(bundle, factory)
    factory.hold_at["h12"] = threading.Event()
    starting = threading.Thread(target=host.start)
    starting.start()
    eventually(lambda: loaded(host) == ["full"])
    if level is None:
        with pytest.raises(UnavailableError, match=r"level 'h\d+', which this request chooses, is still loading"):
            host.lease(selector)
    else:
        assert chosen(host, selector) == level
    with pytest.raises(LevelNotFoundError, match="unknown level"):
        host.lease(Selector(name="nope"))
    factory.hold_at["h12"].set()
    starting.join()
    with host.lease(selector) as lease:
        assert lease.level.name == (level or lease.level.name)


def test_auto_does_not_pass_over_a_level_that_is_still_loading(bundle: Path, factory: FakeFactory) -> None:
    host = ModelHost(bundle, factory, auto=AutoPolicy(max_pending=1))
    factory.hold_at["h12"] = threading.Event()
    starting = threading.Thread(target=host.start)
    starting.start()
    eventually(lambda: loaded(host) == ["full"])
    with host.lease() as lease:
        lease.submit("hold", OPTIONS)
        with pytest.raises(UnavailableError, match="level 'h12', which this request chooses"):
            host.lease(Selector(auto=True))
    factory["full"].release.set()
    factory.hold_at["h12"].set()
    starting.join()


def test_a_level_that_is_left_out_is_not_waited_for(bundle: Path, factory: FakeFactory) -> None:
    factory.fail["h12"] = DeviceUnavailableError("no cuda")
    host = started(bundle, factory)
    with pytest.raises(LevelNotLoadedError, match="'h12' is not loaded"):
        host.lease(Selector(name="h12"))
    assert chosen(host, Selector(max_heads=12)) == "h6"


def test_nothing_is_loaded_once_it_stops(host: ModelHost, factory: FakeFactory, tmp_path: Path) -> None:
    host.unload("h6")
    factory.hold_at["h12"] = threading.Event()
    ended: list[Exception] = []

    def reload() -> None:
        try:
            host.reload(write_bundle(tmp_path / "new", version="new"))
        except UnavailableError as error:
            ended.append(error)

    reloading = threading.Thread(target=reload)
    reloading.start()
    factory.wait_for(lambda: factory.asked[-1] == "h12")
    host.stop_loading()
    factory.hold_at["h12"].set()
    reloading.join()
    assert "shutting down" in str(ended[0])
    assert [t.closed for t in factory.made][-2:] == ["cancelled"] * 2  # of the new bundle
    with pytest.raises(UnavailableError, match="shutting down"):
        host.load("h6")
    with host.lease() as lease:
        assert lease.submit("x", OPTIONS).result(GUARD_S).text == "full:x"
    host.close()


def test_a_failing_start_frees_what_it_loaded(bundle: Path, factory: FakeFactory) -> None:
    factory.fail["h6"] = InvalidArtifactError("level", ["broken"], "fix")
    host = ModelHost(bundle, factory)
    with pytest.raises(InvalidArtifactError):
        host.start()
    assert [t.closed for t in factory.made] == ["cancelled"] * 2


def test_a_level_for_a_missing_device_is_left_out_unless_it_was_asked_for(bundle: Path, factory: FakeFactory) -> None:
    factory.fail["h6"] = DeviceUnavailableError("no cuda")
    host = started(bundle, factory)
    assert loaded(host) == ["full", "h12"]
    with pytest.raises(DeviceUnavailableError, match="no cuda"):
        ModelHost(bundle, factory, levels=["h6"]).start()


def test_the_default_level_has_to_load(bundle: Path, factory: FakeFactory) -> None:
    factory.fail["full"] = DeviceUnavailableError("no cuda")
    with pytest.raises(DeviceUnavailableError, match="no cuda"):
        ModelHost(bundle, factory).start()


def test_on_cuda_the_default_is_the_nearest_fp16_level(tmp_path: Path, factory: FakeFactory) -> None:
    host = ModelHost(write_bundle(tmp_path / "b", precision="fp16"), factory, device="cuda")
    assert host.status().levels[0].is_default


def test_unload_waits_for_work_and_refuses_the_default(host: ModelHost, factory: FakeFactory) -> None:
    with pytest.raises(FailedPreconditionError, match="default level and stays loaded"):
        host.unload("full")
    with pytest.raises(LevelNotFoundError):
        host.unload("nope")
    lease = host.lease(Selector(name="h6"))
    future = lease.submit("hold", OPTIONS)
    thread = threading.Thread(target=host.unload, args=("h6",))
    thread.start()
    eventually(lambda: loaded(host) == ["full", "h12"])
    assert factory["h6"].closed == ""
    factory["h6"].release.set()
    assert future.result(GUARD_S).text == "h6:hold"
    with lease:
        pass
    thread.join(GUARD_S)
    assert factory["h6"].closed == "drained"
    assert host.unload("h6").loaded is False


def test_unloading_a_level_again_waits_for_the_same_end(host: ModelHost, factory: FakeFactory) -> None:
    with host.lease(Selector(name="h6")) as lease:
        lease.submit("hold", OPTIONS)
        status, freed = host.begin_unload("h6")
        for thread in threading.enumerate():  # levels must not be found by the names of their threads
            if "h6" in thread.name:
                thread.name = "renamed"
        again = host.begin_unload("h6")
        assert again == (status, freed)
        assert [future.done() for future in freed] == [False]
        assert host.begin_unload("h12")[1] != freed
        factory["h6"].release.set()
    freed[0].result(GUARD_S)
    assert factory["h6"].closed == "drained"
    assert host.begin_unload("h6")[1] == []


@pytest.mark.parametrize("at_once", [False, True])
def test_an_error_while_a_level_is_freed_is_raised_by_the_unload(
    host: ModelHost, factory: FakeFactory, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    def fail(drain: bool = True) -> None:
        raise RuntimeError("cannot close")

    status = ModelHost._status

    def status_when_freed(self: ModelHost, *arguments: Any) -> LevelStatus:
        for thread in threading.enumerate():
            if thread.name == "free-h6":
                thread.join(GUARD_S)
        return status(self, *arguments)

    monkeypatch.setattr(factory["h6"], "close", fail)
    if at_once:
        monkeypatch.setattr(ModelHost, "_status", status_when_freed)
    with pytest.raises(RuntimeError, match="cannot close"):
        host.unload("h6")
    host.close()
    assert factory["full"].closed == "drained"


def test_load_brings_a_level_back_and_is_idempotent(host: ModelHost, factory: FakeFactory) -> None:
    host.unload("h6")
    assert host.load("h6").loaded
    assert host.load("h6").loaded
    assert [t.level for t in factory.made].count("h6") == 2


def test_reload_switches_and_lets_the_old_bundle_finish(host: ModelHost, factory: FakeFactory, tmp_path: Path) -> None:
    old = factory["full"]
    with host.lease() as lease:
        future = lease.submit("hold", OPTIONS)
        status = host.reload(write_bundle(tmp_path / "new", version="new", levels=("full", "h6")))
        assert status.manifest.version == "new"
        assert loaded(host) == ["full", "h6"]
        with host.lease() as fresh:
            assert (lease.bundle_version, fresh.bundle_version) == ("0123456789abcdef", "new")
            assert fresh.submit("x", OPTIONS).result(GUARD_S).text == "full:x"
        late = lease.submit("late", OPTIONS)  # a call that holds the old level may go on using it
        assert old.closed == ""
        old.release.set()
        assert future.result(GUARD_S).text == "full:hold"
        assert late.result(GUARD_S).text == "full:late"
    old.wait_for(lambda: old.closed == "drained")
    assert factory["full"] is not old


@pytest.mark.parametrize("damage", ["missing", "changed", "future", "no file"])
def test_a_failed_reload_changes_nothing(host: ModelHost, tmp_path: Path, damage: str) -> None:
    new = write_bundle(tmp_path / "new", version="new")
    match damage:
        case "missing":
            (new / "h6" / "decoder.onnx").unlink()
        case "changed":
            (new / "h6" / "decoder.onnx").write_text("other")
        case "future":
            (new / "bundle.json").write_text('{"schema_version": 99}')
        case _:
            new = tmp_path / "nowhere"
    with pytest.raises(InvalidArtifactError):
        host.reload(new)
    with host.lease() as lease:
        assert lease.bundle_version == "0123456789abcdef"
        assert lease.submit("x", OPTIONS).result(GUARD_S).text == "full:x"


def test_a_bundle_without_a_level_of_the_start_is_refused(
    bundle: Path, factory: FakeFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One that was loaded later is left out, and the log says so."""
    host = started(bundle, factory, levels=("full", "h6"))
    host.load("h12")
    with pytest.raises(LevelNotFoundError, match="unknown level 'h6'"):
        host.reload(write_bundle(tmp_path / "without", version="new", levels=("full", "h12")))
    assert host.version == "0123456789abcdef"
    assert loaded(host) == ["full", "h12", "h6"]
    with caplog.at_level(logging.WARNING):
        host.reload(write_bundle(tmp_path / "new", version="new", levels=("full", "h6")))
    assert loaded(host) == ["full", "h6"]
    assert "bundle new has no level h12, which was loaded" in caplog.text


def test_a_reload_whose_level_does_not_load_changes_nothing(
    host: ModelHost, factory: FakeFactory, tmp_path: Path
) -> None:
    factory.fail["h6"] = InvalidArtifactError("level", ["broken graph"], "fix")
    with pytest.raises(InvalidArtifactError, match="broken graph"):
        host.reload(write_bundle(tmp_path / "new", version="new"))
    assert host.status().manifest.version == "0123456789abcdef"
    assert [t.closed for t in factory.made] == ["", "", "", "cancelled", "cancelled"]


def called(
    host: ModelHost, factory: FakeFactory, clock: FakeClock, level: str, texts: list[str], seconds: float
) -> None:
    """A call with these texts, which takes so many seconds."""
    with host.lease(Selector(name=level)) as lease:
        futures = [lease.submit(f"hold {text}", OPTIONS) for text in texts]
        clock.now += seconds
        factory[level].release.set()
        for future in futures:
            future.result(GUARD_S)
    factory[level].release.clear()


def test_latency_is_that_of_whole_calls_and_per_level(bundle: Path, factory: FakeFactory) -> None:
    clock = FakeClock()
    host = started(bundle, factory, clock=clock)
    called(host, factory, clock, "h6", ["a", "b", "c"], 0.5)
    latency = {x.name: x.latency for x in host.status().levels}
    assert latency["full"] is None
    assert latency["h6"] == LatencySummary(500.0, 500.0, 500.0, 1)


def test_a_text_of_many_sentences_does_not_change_what_single_ones_may_take(bundle: Path, factory: FakeFactory) -> None:
    """full, h12 and h6 are recorded with 40, 20 and 10 ms."""
    clock, budget = FakeClock(), Selector(latency_budget_ms=40)
    host = started(bundle, factory, clock=clock)
    factory["full"].queue_size = 100
    called(host, factory, clock, "full", ["A sentence of a longer text, of the usual length."] * 30, 0.6)
    assert host.lease(budget, characters=50).level.name == "full"
    with pytest.raises(LevelNotFoundError, match="of this size within 40 ms now; the fastest is 'h6' with about"):
        host.lease(budget, characters=30 * 50)
    for _ in range(FEW_REQUESTS):
        called(host, factory, clock, "full", ["One sentence."], 0.2)
    assert host.lease(Selector(latency_budget_ms=100), characters=50).level.name == "h6", "the machine is slow now"


def test_a_text_of_many_sentences_does_not_move_auto(
    bundle: Path, factory: FakeFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its sentences took as long as the whole, which a single sentence would not have."""
    plain = FakeTranslator.translation
    monkeypatch.setattr(FakeTranslator, "translation", lambda *given: replace(plain(*given), compute_s=0.6))
    clock, auto = FakeClock(), Selector(auto=True)
    host = started(bundle, factory, clock=clock, auto=AutoPolicy(target_ms=100))
    assert chosen(host, auto) == "full"
    factory["full"].queue_size = 100
    for _ in range(FEW_REQUESTS):
        called(host, factory, clock, "full", ["A sentence of a longer text, of the usual length."] * 30, 0.6)
    factory["full"].expected = 0.6  # as the engine says after such texts
    assert chosen(host, auto) == "full"
    for _ in range(2 * FEW_REQUESTS):
        called(host, factory, clock, "full", ["One sentence."], 0.2)
    assert chosen(host, auto) == "h12", "single ones are slow now"


def test_auto_heeds_what_waits(bundle: Path, factory: FakeFactory) -> None:
    host = started(bundle, factory, auto=AutoPolicy(target_ms=100))
    factory["full"].expected = 0.6
    with host.lease(Selector(name="full")) as lease:
        waiting = lease.submit("hold", OPTIONS)
        assert chosen(host, Selector(auto=True)) == "h12"
        factory["full"].release.set()
        waiting.result(GUARD_S)


def test_a_call_that_failed_is_no_measure_of_latency(bundle: Path, factory: FakeFactory) -> None:
    host = started(bundle, factory)
    with host.lease() as lease:
        lease.submit("x", OPTIONS)
        lease.submit("crash", OPTIONS)
    assert all(level.latency is None for level in host.status().levels)


def test_blank_texts_are_no_measure_of_latency(host: ModelHost) -> None:
    with host.lease() as lease:
        assert lease.submit(" ", OPTIONS).result(GUARD_S).blank
    assert all(level.latency is None for level in host.status().levels)


def test_only_interactive_texts_are_a_measure_of_latency(host: ModelHost) -> None:
    with host.lease(priority=Priority.STANDARD) as lease:
        lease.submit("x", OPTIONS).result(GUARD_S)
    assert all(level.latency is None for level in host.status().levels)


@pytest.mark.parametrize("priority", [Priority.INTERACTIVE, Priority.STANDARD])
def test_auto_steps_down_under_load(host: ModelHost, factory: FakeFactory, priority: Priority) -> None:
    auto = Selector(auto=True)
    assert chosen(host, auto, priority) == "full"
    factory["full"].queue_size = 1000
    with host.lease(priority=priority) as lease:
        futures = [lease.submit("hold", OPTIONS) for _ in range(64)]
        assert chosen(host, auto, Priority.STANDARD) == "h12"
        assert chosen(host, auto) == ("h12" if priority.interactive else "full")
        factory["full"].release.set()
        for future in futures:
            future.result(GUARD_S)
    assert chosen(host, auto, priority) == "h12"  # for a while


@pytest.mark.usefixtures("own_collector")
def test_a_level_that_was_loaded_before_the_collector_was_frozen_is_freed() -> None:
    class Loaded:
        """Refers to itself, as a level and its threads do."""

        def __init__(self) -> None:
            self.own = self

    seen = weakref.ref(Loaded())
    gc.freeze()
    try:
        gc.collect()
        assert seen() is not None, "the collector leaves it alone"
        collect()
        assert seen() is None
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
