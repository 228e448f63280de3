"""The parts of `cuda_counts` that need no stand-in libraries: sums of operations, made-up answers, tables, messages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments.support.counting.answers import Answers, Lengths
from experiments.support.counting.device_search import RUNS_BEFORE_REPLAY, SearchAnswers
from experiments.support.counting.libraries import NEEDED, check_folder
from experiments.support.counting.operations import LARGE, Operation, Sums, by_kind
from experiments.support.counting.steps import Setting, summary
from experiments.support.counting.table import comparison
from experiments.support.counting.watching import Bound, Run
from tests.experiments.conftest import Experiment
from tests.tiny import tiny_architecture

from hmc.artifact.errors import DeviceUnavailableError

ARCH = tiny_architecture()
NAMES = {
    np.int32: "tensor(int32)",
    np.int64: "tensor(int64)",
    np.float32: "tensor(float)",
    np.float64: "tensor(double)",
}


@dataclass
class Meta:
    """An input or output of a session."""

    name: str
    type: str


class Graph:
    """A session of a decoder with its memory: `next_X` is the memory of `X`, as on a device."""

    def __init__(self, inputs: dict[str, np.ndarray], outputs: dict[str, np.ndarray]) -> None:
        self.arrays = inputs | outputs
        fed = {f"next_{name}": array for name, array in inputs.items() if name != "limits"}
        self.inputs_meta = [Meta(name, NAMES[array.dtype.type]) for name, array in inputs.items()]
        self.outputs_meta = [Meta(name, NAMES[array.dtype.type]) for name, array in (fed | outputs).items()]
        self._inputs = {name: Bound(array.ctypes.data, array.shape) for name, array in inputs.items()}
        self._outputs = {name: Bound(array.ctypes.data, array.shape) for name, array in (fed | outputs).items()}

    def run(self, *, first: bool = False) -> Run:
        return Run("step", self, self._inputs, self._outputs, "1", first, 0.0, 0.0)


def test_operations_are_launches_copies_and_waits() -> None:
    lines = [
        "kernel\tsoftmax\t1,1,1\t32,1,1\t0\t-1\t0x0",
        "gemm\tcublasGemmEx m1 n2 k3 b1\t0,0,0\t0,0,0\t0\t-1\t0x0",
        "gemm\t(cudnnFinalize kind 5) m0 n0 k0 b1\t0,0,0\t0,0,0\t0\t-1\t0x0",
        "cudaGraphLaunch\t\t0,0,0\t0,0,0\t0\t-1\t0x0",
        "cudaMemsetAsync\t\t0,0,0\t0,0,0\t64\t-1\t0x0",
        "cudaMemcpyAsync\t\t0,0,0\t0,0,0\t128\t3\t0x0",
        "cudaMemcpyAsync\t\t0,0,0\t0,0,0\t100\t1\t0x0",
        f"cudaMemcpy\t\t0,0,0\t0,0,0\t{LARGE}\t2\t0x0",
        "cudaStreamSynchronize\t\t0,0,0\t0,0,0\t0\t-1\t0x0",
        "cudaEventRecord\t\t0,0,0\t0,0,0\t0\t-1\t0x0",
    ]
    found = [Operation.read(line) for line in lines]
    assert Sums.of(found) == Sums(
        launches=5, copies_to_device=1, bytes_to_device=100, copies_to_host=1, bytes_to_host=LARGE, waits=2,
        large_bytes=LARGE,
    )  # fmt: skip
    assert by_kind(found)["gemm"] == 1
    assert summary([Sums.of(found), Sums.of(found[:1])], np.max)["bytes"] == LARGE + 100


def test_settings() -> None:
    assert Setting.parse("32x4+prefix") == Setting(32, 4, prefix=True)
    assert str(Setting.parse("1x1")) == "1x1"
    with pytest.raises(ValueError, match="BATCHxBEAM"):
        Setting.parse("32x4+else")


def test_sentences_end_at_natural_lengths() -> None:
    """Ending with the hazard at each length gives the lengths back."""
    natural = [3] * 30 + [5] * 60 + [9] * 10
    lengths, rng = Lengths(natural), np.random.default_rng(1)
    running, ended = np.ones(4000, bool), np.zeros(4000, np.int64)
    for length in range(1, 10):
        now = running & lengths.ends(np.full(4000, length), rng)
        ended[now], running = length, running & ~now
    assert not running.any()
    for length in (3, 5, 9):
        assert np.mean(ended == length) == pytest.approx(natural.count(length) / 100, abs=0.03)
    assert not Lengths(None).ends(np.full(10, 500), rng).any()


def test_answers_of_host_search_end_whole_sentences() -> None:
    inputs = {"tokens": np.zeros(8, np.int32), "lengths": np.array([4, 4, 4, 4, 0, 0, 0, 0], np.int32)}
    inputs["node_bias"] = np.zeros((2, 1, 4, 16), np.float32)
    graph = Graph(inputs, {"scores": np.zeros((8, 9), np.float32), "ids": np.zeros((8, 9), np.int64)})
    Answers(ARCH, Lengths([5]))(graph.run())  # each sentence ends with its fifth token
    scores, ids = graph.arrays["scores"], graph.arrays["ids"]
    assert (np.diff(scores, axis=1) <= 0).all()
    assert (ids[:4, 0] == ARCH.eos_id).all()
    assert (ids[4:] >= 3).all()


def search(limits: list[int], beam: int = 2) -> Graph:
    """A decoder with the search inside, for sentences that begin now."""
    count, longest = len(limits), 16

    def of_rows(dtype: Any) -> np.ndarray:
        return np.full((count, beam), 99, dtype)

    state = {name: of_rows(np.int32) for name in ("tokens", "ended_lengths", "ended_rows", "ended_complete")}
    state |= {name: of_rows(np.float64) for name in ("totals", "ended_ranks", "ended_totals")}
    state["ended_finals"] = of_rows(np.float32)
    for name, dtype in (("tokens", np.int32), ("parents", np.int32), ("scores", np.float32)):
        state[f"history_{name}"] = np.full((count, longest, beam), 99, dtype)
    for name, value in (("limits", limits), ("minimums", 2), ("fresh", 1), ("lengths", 99), ("done", 99)):
        state[name] = np.zeros(count, np.int32) + np.array(value, np.int32)
    return Graph(state, {"report": np.zeros(2, np.int32)})


def test_answers_of_device_search_keep_its_state() -> None:
    """Sentences begin, end by their natural length or at their limit, and then stay as they are. Slot 2 is free."""
    graph = search([8, 3, 0])
    answers = SearchAnswers(ARCH, Lengths([4]))
    running = []
    for _ in range(5):
        answers(graph.run())
        running.append(int(graph.arrays["report"][0]))
    assert running == [2, 2, 1, 0, 0]
    assert graph.arrays["lengths"][:2].tolist() == [4, 3]
    assert graph.arrays["done"].tolist() == [1, 1, 1]
    assert not graph.arrays["fresh"].any()
    assert graph.arrays["ended_lengths"][:2].tolist() == [[4, 4], [3, 3]]
    assert graph.arrays["ended_complete"][:2].tolist() == [[1, 1], [0, 0]]
    assert (graph.arrays["history_tokens"][0, :4] < 99).all()
    assert (graph.arrays["history_tokens"][0, 4:] == 99).all()
    assert (graph.arrays["history_tokens"][2] == 99).all()


def test_the_run_that_captures_a_graph_executes_it_several_times() -> None:
    graph = search([12])
    SearchAnswers(ARCH, Lengths(None))(graph.run(first=True))
    assert graph.arrays["lengths"].tolist() == [RUNS_BEFORE_REPLAY]


def test_table_of_two_reports() -> None:
    def report(calls: int, plans: int) -> dict[str, Any]:
        return {
            "encoder": {"1": {"encoder_calls": calls, "decoder_steps": 200}},
            "natural": {"warm": {"plans": 34}, "1000": {"plans": 229}, "5000": {"plans": plans}},
            "memory": {"weights": 100_000_000, "opened": 500_000_000},
        }

    table = comparison(report(1011, 344), report(50, 34)).splitlines()
    assert table[0] == "| counted | before | after |"
    assert (
        "| encoder calls for the queued sentences, beam 1 | 1,011 (200 decoder steps) | 50 (200 decoder steps) |"
        in table
    )
    assert "| cuDNN plans: warm → after all sentences | 34 → 344 | 34 → 34 |" in table
    assert any("500 MB (5.00×)" in line for line in table)
    assert not any("launches" in line for line in table)  # neither report has steps


def test_absent_libraries_are_named(experiment: Experiment, tmp_path: Path) -> None:
    ran = experiment("cuda_counts")
    assert ran.status == 1
    assert ran.output.splitlines()[-1].startswith("error: --libraries is missing: give the folder of stand-ins")
    for name in NEEDED[1:]:
        (tmp_path / name).touch()
    with pytest.raises(DeviceUnavailableError, match=r"libcudart\.so\.13 not found"):
        check_folder(tmp_path)
    (tmp_path / NEEDED[0]).write_bytes(b"a real library")
    with pytest.raises(DeviceUnavailableError, match="counts nothing"):
        check_folder(tmp_path)
