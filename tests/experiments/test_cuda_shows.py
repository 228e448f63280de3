"""What HMC promises of its work on CUDA, as bounds on counts over the stand-in libraries. No time is compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from experiments.support.counting.child import fresh
from experiments.support.counting.process import Task
from experiments.support.random_checkpoint import sized_checkpoint
from tests.once import Once

from hmc.compiler import LevelRequest, compile_bundle

pytestmark = [pytest.mark.slow, pytest.mark.cuda_counts, pytest.mark.usefixtures("counting_libraries")]
SETTINGS = ("1x1", "32x1", "32x4", "256x4")
PREFIXES = ("1x1+prefix", "32x1+prefix", "32x4+prefix")
LEVELS = ("full-fp16", "h36-fp16")
STEADY = ("plans", "graphs", "graphs_made", "bindings", "bindings_made", "device_bytes")
"""What may not grow after the warm-up."""
HOST_NOISE = 2 << 20
"""Bytes by which the memory of the host differs from reading to reading: pages that Python's allocator keeps."""
DEVICE_NOISE = 1 << 16
"""Bytes of the device that depend on which sentences meet: far below what a pool or a session takes."""
MEETING = 1
"""Graphs and bindings that depend on which sentences meet: a machine that is busy lets fewer of them."""
TIMES = 6
"""How often a level becomes idle and is used again."""


def _deep_at(path: Path) -> None:
    """Six layers a side at fp16, as many as Transformer-base has, with all heads and with a quarter of them."""
    sized_checkpoint(path / "checkpoint", "deep")
    requests = [LevelRequest(path / "checkpoint", heads) for heads in (None, 36)]
    compile_bundle(requests, path / "bundle", precisions=("fp16",))


def _answer_at(path: Path, task: Task, libraries: Path) -> None:
    path.mkdir()
    (path / "answer.json").write_text(json.dumps(fresh(task, libraries)), encoding="utf-8")


def answer(once: Once, task: Task, libraries: Path) -> dict[str, Any]:
    """What `fresh` measures, once in a run."""
    found: dict[str, Any] = json.loads((once(_answer_at, task, libraries) / "answer.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def deep(once: Once) -> Task:
    """A model of twelve layers, with random weights."""
    return Task(part="", bundle=str(once(_deep_at) / "bundle"), levels=LEVELS, provider={})


@pytest.fixture(scope="module")
def embedded(embedded_on_cuda: Path) -> Task:
    """The embedded model, for what does not depend on the size of a model."""
    return Task(part="", bundle=str(embedded_on_cuda), levels=LEVELS, provider={})


@pytest.fixture(scope="module")
def served(deep: Task, counting_libraries: Path, once: Once) -> dict[str, Any]:
    """Steps as they are served."""
    return answer(once, deep.but(part="steps", settings=(*SETTINGS, *PREFIXES)), counting_libraries)


@pytest.fixture(scope="module")
def uncaptured(deep: Task, counting_libraries: Path, once: Once) -> dict[str, Any]:
    """Steps without captured graphs, where ONNX Runtime chooses how attention is computed."""
    options = {"enable_cuda_graph": "0", "sdpa_kernel": "0"}
    return answer(once, deep.but(part="steps", settings=PREFIXES, provider=options), counting_libraries)


def test_nothing_grows_after_the_warm_up(embedded: Task, counting_libraries: Path) -> None:
    """2 500 sentences of natural lengths, greedy and beam 4, interactive and not. Idle, a level gives its pools back;
    used again, it has no more than before."""
    found = fresh(embedded.but(part="natural", sentences=2500), counting_libraries)
    warm, last, idle, again = (found[name] for name in ("warm", "2500", "idle", "again"))
    assert {name: last[name] for name in STEADY} == {name: warm[name] for name in STEADY}
    assert last["host_bytes"] - found["500"]["host_bytes"] <= HOST_NOISE
    assert idle["graphs"] == 0
    assert idle["device_bytes"] < warm["device_bytes"] / 2
    assert 0 < again["graphs"] <= warm["graphs"]
    assert again["device_bytes"] <= warm["device_bytes"]
    assert found["closed"]["device_bytes"] < found["loaded"]["device_bytes"]


def test_pools_that_are_given_back_many_times_leave_nothing_behind(embedded: Task, counting_libraries: Path) -> None:
    found = fresh(embedded.but(part="returns", sentences=TIMES, rows=32), counting_libraries)
    for state, graphs in (("used", True), ("idle", False)):
        _, first, *others = found[state]  # the first time, arenas and kernels are new
        assert len(others) == TIMES - 2
        for later in others:
            assert later["graphs"] <= first["graphs"] + MEETING  # a leak of one each time would be more
            assert later["bindings"] <= first["bindings"] + MEETING
        half = len(others) // 2  # which pools there are depends on which sentences meet; a leak grows each time
        begin, end = [first, *others[:half]], others[half:]
        assert min(x["device_bytes"] for x in end) <= max(x["device_bytes"] for x in begin) + DEVICE_NOISE
        assert (first["graphs"] > 0) is graphs
        assert others[-1]["host_bytes"] - first["host_bytes"] <= HOST_NOISE


@pytest.mark.parametrize("setting", ["1x1", "32x1"])
def test_a_greedy_step_is_one_launch(served: dict[str, Any], setting: str) -> None:
    """Steps between two readings of the report: one launch, no copy, no wait."""
    middle, most = served[setting]["middle"], served[setting]["most"]
    assert (middle["launches"], middle["bytes"], middle["waits"]) == (1, 0, 0)
    assert (most["launches"], most["bytes"]) == (1, 8)  # the report is two numbers


@pytest.mark.parametrize("setting", ["32x4", "256x4"])
def test_a_beam_step_is_a_few_launches(served: dict[str, Any], setting: str) -> None:
    most = served[setting]["most"]
    assert most["launches"] <= 3
    assert most["bytes"] <= 1024


@pytest.mark.parametrize("setting", PREFIXES)
def test_a_step_whose_search_is_on_the_host_is_one_launch_too(served: dict[str, Any], setting: str) -> None:
    """But in a step before which the caches grow, which copies them."""
    middle = served[setting]["middle"]
    assert (middle["launches"], middle["copies_to_device"], middle["copies_to_host"]) == (1, 1, 1)
    assert served[setting]["most"]["launches"] <= 126
    assert served[setting]["mean"]["launches"] <= 3


@pytest.mark.parametrize("setting", PREFIXES)
def test_launches_without_captured_graphs(uncaptured: dict[str, Any], setting: str) -> None:
    assert 50 < uncaptured[setting]["middle"]["launches"] <= 126


def test_levels_and_graphs_share_one_copy_of_the_weights(deep: Task, counting_libraries: Path) -> None:
    found = fresh(deep.but(part="memory", rows=16), counting_libraries)
    assert found["opened"] <= 1.15 * found["weights"]
    assert found["idle"] < found["used"] / 2


def test_caches_do_not_move_through_the_host(embedded: Task, counting_libraries: Path) -> None:
    found = fresh(embedded.but(part="long", settings=SETTINGS), counting_libraries)
    assert {setting: row["large_bytes"] for setting, row in found.items()} == dict.fromkeys(SETTINGS, 0)
