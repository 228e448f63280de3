"""Models of random sizes, compiled and timed through the engine. How long they take is not compared with anything."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.artifact.model.test_latency import whole
from tests.tiny import SENTENCES, tiny_checkpoint_at

from hmc.artifact import InvalidRequestError, load_checkpoint, save_checkpoint
from hmc.artifact.model.ffn import STACKS
from hmc.benchmark.budget.latency_table import WHOLE, Serving, TimedModels, cut, measure_table, random_sizes, sizes_of

QUICK = Serving("int8", batch=2, beam=2, threads=1, rounds=1)


def test_random_models_are_real_checkpoints(tmp_path: Path) -> None:
    checkpoint, rng = tiny_checkpoint_at(tmp_path / "c"), np.random.default_rng(0)
    drawn = [random_sizes(whole(), rng) for _ in range(40)]
    for number, sizes in enumerate(drawn):
        save_checkpoint(cut(checkpoint, sizes), tmp_path / f"m{number}")
        assert sizes_of(load_checkpoint(tmp_path / f"m{number}")) == sizes
        assert all(sizes.layers(stack) for stack in STACKS)
    assert any(sizes.removed for sizes in drawn)
    assert any(0 in sizes.neurons.decoder and not sizes.removed.decoder for sizes in drawn)
    assert len({str(sizes) for sizes in drawn}) == 40


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_table_of_a_tiny_model(tmp_path: Path, precision: str) -> None:
    tiny_checkpoint_at(tmp_path / "c")
    said: list[str] = []
    serving = Serving(precision, batch=2, beam=2, threads=1, rounds=1)  # type: ignore[arg-type]
    table = measure_table(tmp_path / "c", SENTENCES, serving, models=13, held_out=2, progress=said.append)
    assert (table.setting.precision, table.setting.batch, table.setting.beam) == (precision, 2, 2)
    assert [o.held_out for o in table.observations] == [False] * 13 + [True] * 2
    assert table.observations[0].sizes == whole()
    assert table.observed_ms(whole()) == table.observations[0].ms
    assert 0 <= table.floor_ms(whole()) <= table.ms(whole())  # of one noisy round, the fit may find no fixed cost
    assert table.ms(whole()) > 0
    assert "m14: compile" in said
    assert "round 1 of 1" in said


def test_every_model_takes_as_many_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = tiny_checkpoint_at(tmp_path / "c")
    lengths: set[int] = set()

    def noted(translators: dict[str, object], sentences: list[str], **how: object) -> dict[str, float]:
        for translator in translators.values():
            found = translator.translate(sentences, how["options"])  # type: ignore[attr-defined]
            lengths.update(each.target_tokens for each in found)
        return dict.fromkeys(translators, 1.0)

    monkeypatch.setattr("hmc.benchmark.budget.latency_table.time_requests", noted)
    with TimedModels(tmp_path / "c", checkpoint, SENTENCES, QUICK) as timed:
        timed.add("small", cut(checkpoint, random_sizes(whole(), np.random.default_rng(1))))
        assert timed.time([WHOLE, "small"]) == {WHOLE: 1.0, "small": 1.0}
        assert lengths == {timed.setting.target_tokens}


@pytest.mark.parametrize(
    ("serving", "problem"),
    [
        (Serving("fp16"), "fp16 runs on CUDA"),
        (Serving("fp32", batch=50), "only 12 sentences can be timed"),
        (Serving("int8", on="cuda"), "serve cuda: it counts programs of fp16, bf16, not of int8"),
        (Serving("int4", on="cpu"), "serve cpu: it counts programs of fp32, int8, not of int4"),
    ],
)
def test_what_cannot_be_measured_is_refused(tmp_path: Path, serving: Serving, problem: str) -> None:
    tiny_checkpoint_at(tmp_path / "c")
    with pytest.raises(InvalidRequestError, match=problem):
        measure_table(tmp_path / "c", SENTENCES, serving)


@pytest.mark.parametrize(("precision", "on"), [("fp32", "cpu"), ("fp16", "cuda")])
def test_counts_give_a_table_without_noise(tmp_path: Path, precision: str, on: str) -> None:
    tiny_checkpoint_at(tmp_path / "c")
    serving = Serving(precision, batch=1, beam=1, on=on)  # type: ignore[arg-type]
    table = measure_table(tmp_path / "c", SENTENCES, serving)
    assert table.setting.device == f"{on}, counted"
    assert table.worst_error < 0.01
    assert all(layer >= 0 for layer in table.layers.values())
    decoder = table.heads["decoder_self"]
    if on == "cuda":
        assert decoder.open_ms > 10 * decoder.each_ms, "operations cost, and heads nearly nothing"
