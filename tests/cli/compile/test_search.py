"""`hmc compile --max-bleu-drop`: budgets found, and what is left behind when none is."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.conftest import NEEDED, Hmc, in_a_process
from tests.command import done, refused
from tests.support.files import bytes_of
from tests.tiny import tiny_checkpoint_at

from hmc.artifact import validate
from hmc.benchmark import Candidate
from hmc.benchmark.budget import find
from hmc.benchmark.budget.find import LevelMeter
from hmc.benchmark.measure.latency import LatencyResult
from hmc.benchmark.measure.machine import this_machine


def test_the_fewest_heads_that_keep_a_drop(hmc: Hmc, prunable: Path, tmp_path: Path, pairs: tuple[Path, Path]) -> None:
    out = tmp_path / "b"
    words = ["--max-bleu-drop", "5", "--eval", *pairs, "--beam", "1"]
    ran = done(hmc("compile", prunable, *words, "-o", out, "--json"))
    manifest = validate(out)
    assert [level.name for level in manifest.levels] == ["full", "h12"]
    assert manifest.default_level == "h12"
    assert manifest.level("h12").quality.bleu_delta == 0  # type: ignore[union-attr]
    tokenizer = {"tokenizer.model"}
    assert {path.name for path in out.iterdir()} == {"bundle.json", "weights", "full", "h12"} | tokenizer
    assert {f for level in manifest.levels for f in level.files} == bytes_of(out).keys() - {"bundle.json"} - tokenizer
    assert list(tmp_path.iterdir()) == [out]

    data = json.loads(ran.stdout)
    searched = data["search"]["precisions"]["fp32"]
    assert searched["found"] == data["default_level"] == "h12"
    tried = {c["heads"]: c for c in searched["tried"]}
    assert {heads for heads in tried if heads < NEEDED} >= {11, 10, 9}
    assert all(c["keeps_drop"] == (heads >= NEEDED) == (c["loss_at_most"] <= 5) for heads, c in tried.items())
    assert all(c["p50_ms"] > 0 for c in tried.values())
    assert "median of 1 × 64 requests, one sentence each, beam 1" in data["search"]["timed"]
    assert "Tried on 108 sentences of tiny, Δ against full" in ran.stderr
    assert manifest.provenance["head_search"]["fp32"]["found"] == "h12"

    # Searched again: the same bytes. Compiled by its number of heads: the same levels.
    done(hmc("compile", prunable, *words, "-o", tmp_path / "again"))
    assert bytes_of(tmp_path / "again") == bytes_of(out)
    assert hmc("compile", prunable, "--target-heads", "24,12", "-o", tmp_path / "given").exit_code == 0
    assert validate(tmp_path / "given").version == manifest.version


def test_every_precision_is_searched_against_full(
    hmc: Hmc, prunable: Path, tmp_path: Path, few: tuple[Path, Path]
) -> None:
    ran = done(hmc(
        "compile", prunable, "--max-bleu-drop", "60", "--max-latency-ms", "1e6", "--eval", *few,
        "--beam", 1, "--precision", "int8,fp32", "--calibrate", few[0], "-o", tmp_path / "b",
    ))  # fmt: skip
    manifest = validate(tmp_path / "b")
    names = [level.name for level in manifest.levels]
    assert names[:2] == ["full-int8", "full"]
    assert manifest.default_level == names[2]
    assert manifest.level(names[2]).precision == "int8"
    assert {level.quality.reference_level for level in manifest.levels if level.quality} == {"full"}
    assert all(level.quality for level in manifest.levels)
    assert "p50: 12 requests, one sentence each, beam 1" in ran.stdout
    assert "6 rounds or more in turns with the first level" in ran.stdout


def test_twins_with_shortlists_are_searched_too(
    hmc: Hmc, prunable: Path, tmp_path: Path, few: tuple[Path, Path]
) -> None:
    text = tmp_path / "text"
    text.mkdir()
    for side in few:
        (text / side.name).write_text("A dog sees a cat.\nTwo cats sleep.\n")
    ran = done(hmc(
        "compile", prunable, "--max-bleu-drop", "100", "--eval", *few, "--beam", 1,
        "--precision", "fp32,int8", "--calibrate", few[0],
        "--shortlist", *(text / side.name for side in few), "-o", tmp_path / "b", "--json",
    ))  # fmt: skip
    manifest = validate(tmp_path / "b")
    whole, found = manifest.levels[:3], manifest.levels[3:]
    assert [level.name for level in whole] == ["full", "full-int8", "full-int8-shortlist"]
    assert [level.name for level in found] == ["h1", "h1-int8", "h1-int8-shortlist"]
    assert [bool(level.shortlist) for level in found] == [False, False, True]
    assert {level.quality.reference_level for level in manifest.levels if level.quality} == {"full"}
    searched = json.loads(ran.stdout)["search"]["precisions"]
    assert {name: done["found"] for name, done in searched.items()} == {
        "fp32": "h1", "int8": "h1-int8", "int8-shortlist": "h1-int8-shortlist",
    }  # fmt: skip
    assert manifest.provenance["head_search"].keys() == searched.keys()
    assert {f for level in manifest.levels for f in level.files} | {"bundle.json", "tokenizer.model"} == set(
        bytes_of(tmp_path / "b")
    )


class Machine:
    """Stands in for `measure_latency`: a level takes a millisecond for each of its heads, times what else goes on."""

    def __init__(self, busy: Callable[[str, int, int], float]) -> None:
        self.busy = busy
        """(level, how many measurements there were before, round) → how many times longer everything takes."""
        self.measured: list[tuple[str, ...]] = []

    def __call__(
        self, levels: Mapping[str, object], sentences: Sequence[str], sizes: object, *, rounds: int, reference: str
    ) -> list[LatencyResult]:
        results, before = [], len(self.measured)
        self.measured.append(tuple(levels))
        for name in levels:
            heads = 24 if name.startswith("full") else int(name.partition("-")[0].removeprefix("h"))
            rows = [(heads * self.busy(name, before, n),) * len(sentences) for n in range(rounds)]
            p50 = sorted(row[0] for row in rows)[rounds // 2]
            results.append(LatencyResult(name, 1, 1, 9, p50, None, None, 1, 1, 1, samples_ms=tuple(rows)))
        return results


@pytest.mark.parametrize(("fast", "default"), [("twin", "full-int8-shortlist"), ("whole", "full-int8")])
def test_a_twin_or_its_precision_may_find_nothing(
    hmc: Hmc, prunable: Path, tmp_path: Path, few: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch,
    fast: str, default: str,
) -> None:  # fmt: skip
    def timed(_: LevelMeter, measured: Candidate) -> Candidate:
        return replace(measured, p50_ms=1.0 if measured.shortlist == (fast == "twin") else 9.0)

    monkeypatch.setattr(LevelMeter, "judged", timed)
    monkeypatch.setattr(find, "measure_latency", Machine(lambda *_: 1.0))
    for side in few:
        (tmp_path / side.name).write_text("A dog sees a cat.\nTwo cats sleep.\n")
    ran = done(hmc(
        "compile", prunable, "--max-latency-ms", 5, "--eval", *few, "--beam", 1, "--precision", "int8",
        "--calibrate", few[0], "--shortlist", *(tmp_path / side.name for side in few), "-o", tmp_path / "b",
    ))  # fmt: skip
    manifest = validate(tmp_path / "b")
    assert [level.name for level in manifest.levels] == ["full-int8", "full-int8-shortlist"]
    assert manifest.default_level == default
    found = {name: done["found"] for name, done in manifest.provenance["head_search"].items()}
    assert found == {"int8": None, "int8-shortlist": None} | {default.removeprefix("full-"): default}
    assert "note: nothing found. no level answers within 5 ms" in ran.stdout


def test_a_precision_that_finds_nothing_does_not_end_the_search(
    hmc: Hmc, prunable: Path, tmp_path: Path, few: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def timed(_: LevelMeter, measured: Candidate) -> Candidate:
        return replace(measured, p50_ms=9.0 if measured.precision == "fp32" else 1.0)

    monkeypatch.setattr(LevelMeter, "judged", timed)
    monkeypatch.setattr(find, "measure_latency", Machine(lambda *_: 1.0))
    ran = done(hmc(
        "compile", prunable, "--max-latency-ms", 5, "--eval", *few, "--beam", 1, "--precision", "fp32,int8",
        "--calibrate", few[0], "-o", tmp_path / "b",
    ))  # fmt: skip
    manifest = validate(tmp_path / "b")
    assert manifest.default_level == "full-int8"
    found = {name: done["found"] for name, done in manifest.provenance["head_search"].items()}
    assert found == {"fp32": None, "int8": "full-int8"}
    assert "note: nothing found. no level answers within 5 ms" in ran.stdout


@pytest.mark.parametrize(
    "busy",
    [
        lambda _, before, __: 1 if before < 2 else 2,
        lambda _, before, __: 3 if before == 0 else 1,
        lambda _, before, n: 1 + 0.5 * ((before + n) % 3),
    ],
    ids=["from the third measurement on", "in the first measurement", "in two rounds of three"],
)
@pytest.mark.parametrize(("limit", "expected"), [("12.4", "h12"), ("24.1", "full")])
def test_a_busy_machine_changes_no_choice(
    hmc: Hmc, prunable: Path, tmp_path: Path, few: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch,
    busy: Callable[[str, int, int], float], limit: str, expected: str,
) -> None:  # fmt: skip
    """Whatever slows all levels down alike in a round, and comes and goes, is not in their ratios."""
    machine = Machine(busy)
    monkeypatch.setattr(find, "measure_latency", machine)
    done(hmc("compile", prunable, "--max-latency-ms", limit, "--eval", *few, "--beam", 1, "-o", tmp_path / "b"))
    assert validate(tmp_path / "b").default_level == expected
    assert all(levels[0] == "full" for levels in machine.measured)  # each in turns with the first


def test_where_rounds_disagree_it_is_not_known(
    hmc: Hmc, prunable: Path, tmp_path: Path, few: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Levels around the limit are not taken, nor called too slow; what surely keeps the limit is."""

    def noisy(name: str, _: int, n: int) -> float:
        return 1.0 if name == "full" else (0.8, 1.25)[n % 2]

    machine = Machine(noisy)
    monkeypatch.setattr(find, "measure_latency", machine)
    words = ["--eval", *few, "--beam", 1, "-o", tmp_path / "b"]
    ran = done(hmc("compile", prunable, "--max-latency-ms", "12.4", *words, "--json"))
    data = json.loads(ran.stdout)
    tried = {c["level"]: c for c in data["search"]["precisions"]["fp32"]["tried"]}
    assert tried["h12"]["keeps_latency"] is None
    assert tried["h12"]["p50_low"] < 12.4 < tried["h12"]["p50_high"]
    assert tried[data["default_level"]]["p50_high"] <= 12.45
    assert 9 <= tried[data["default_level"]]["heads"] < 12
    assert machine.measured.count(("full", "h12")) == 3  # it is asked again before it is given up
    said = " ".join(ran.stderr.split())
    assert "surely keeps the latency. latency: not known whether " in said
    assert "because the rounds disagree. Compile again while the machine does nothing else, or allow more" in said

    monkeypatch.setattr(find, "measure_latency", Machine(lambda name, _, n: 1.0 if name == "full" else (0.2, 5)[n % 2]))
    refused(hmc("compile", prunable, "--max-latency-ms", "2", *words), "not known whether h1 (", "the rounds disagree")


@pytest.mark.parametrize("load", [0.0, 99.0])
def test_a_busy_machine_is_told(
    hmc: Hmc, prunable: Path, tmp_path: Path, few: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, load: float
) -> None:
    monkeypatch.setattr(find, "this_machine", lambda devices: replace(this_machine(devices), load_average=load))
    monkeypatch.setattr(find, "measure_latency", Machine(lambda *_: 1.0))
    ran = done(hmc("compile", prunable, "--max-latency-ms", "30", "--eval", *few, "--beam", 1, "-o", tmp_path / "b"))
    said = "It was busy with something else, load average 99.0 at the start: what is too slow may be fast enough"
    assert (said in " ".join(ran.stdout.split())) == (load > 0)


def test_all_heads_are_fast_enough(hmc: Hmc, prunable: Path, tmp_path: Path, few: tuple[Path, Path]) -> None:
    done(hmc("compile", prunable, "--max-latency-ms", "1e6", "--eval", *few, "--beam", 1, "-o", tmp_path / "b"))
    assert [level.name for level in validate(tmp_path / "b").levels] == ["full"]


@pytest.mark.parametrize(
    ("limit", "text", "message"),
    [
        (["--max-bleu-drop", "5"], "pairs", "BLEU: no level loses at most 5 against h12; the nearest, h"),
        (["--max-latency-ms", "1e-3"], "few", "no level answers within 0.001 ms: the fastest found is "),
    ],
)
def test_nothing_found_nothing_left(
    hmc: Hmc, pruned: Path, tmp_path: Path, limit: list[str], text: str, message: str, request: pytest.FixtureRequest
) -> None:
    test_set = request.getfixturevalue(text)
    ran = hmc("compile", pruned, *limit, "--eval", *test_set, "--beam", 1, "-o", tmp_path / "b")
    assert ran.exit_code == 2
    assert f"hmc: {message}" in ran.stderr
    assert f"Tried on {len(test_set[0].read_text().splitlines())} sentences of tiny" in ran.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_search_needs_scores(hmc: Hmc, tmp_path: Path, pairs: tuple[Path, Path]) -> None:
    tiny_checkpoint_at(tmp_path / "plain", gates=False)
    ran = hmc("compile", tmp_path / "plain", "--max-bleu-drop", "1", "--eval", *pairs, "-o", tmp_path / "b")
    assert ran.exit_code == 2
    assert "a search for a head budget: the checkpoint has neither gates nor importance" in ran.stderr


def test_fp16_is_not_searched_without_cuda(
    hmc: Hmc, prunable: Path, tmp_path: Path, pairs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hmc.engine.runtime.device.cuda_available", lambda: False)
    words = ["--max-bleu-drop", "1", "--eval", *pairs, "--precision", "fp16"]
    refused(hmc("compile", prunable, *words, "-o", tmp_path / "b"), "--precision fp16: such levels run on CUDA")


@pytest.mark.slow
def test_a_search_that_is_terminated_leaves_nothing(prunable: Path, tmp_path: Path, pairs: tuple[Path, Path]) -> None:
    words: list[str | Path] = ["--max-bleu-drop", "5", "--eval", *pairs, "-o", tmp_path / "b"]
    ran = in_a_process(0, "compile", prunable, *words)
    assert ran.stderr
    assert ran.stderr.readline() == "full\n"  # now the first level is being compiled
    assert [path.name[:3] for path in tmp_path.iterdir()] == [".b."]
    ran.terminate()
    ran.communicate()
    assert ran.returncode == 143
    assert list(tmp_path.iterdir()) == []
