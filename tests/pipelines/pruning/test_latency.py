"""From a model to levels that keep a latency, by the command, on the demo's model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.command import done
from tests.pipelines.pruning.test_pruning_text import QUICK, english, run
from tests.support.files import write_pair
from tests.support.trained import CHECKPOINT, ENGLISH, GERMAN
from tests.tiny import SENTENCES, tiny_checkpoint_at

from hmc.artifact import Precision, load_checkpoint, validate
from hmc.artifact.checkpoint.checkpoint import checkpoint_digest
from hmc.artifact.model.ffn import STACKS
from hmc.artifact.model.heads import KINDS
from hmc.artifact.model.latency import Cost, LatencyTable, Observation, ServingSetting, read_table, write_table
from hmc.benchmark.budget.latency_table import sizes_of
from hmc.serving import Translator

__all__ = ["english"]
SERVING = ("--serve-batch", "2", "--serve-beam", "2", "--serve-threads", "1")


def table_at(path: Path, precision: Precision) -> Path:
    """Writes a table as if the machine took 0.5 ms for an open sub-layer, and for all of its parts as much again."""
    loaded = load_checkpoint(CHECKPOINT)
    arch, sizes = loaded.architecture, sizes_of(loaded)
    made = LatencyTable(
        setting=ServingSetting(precision=precision, batch=2, beam=2, source_tokens=12, target_tokens=12, threads=1),
        architecture=arch,
        checkpoint=checkpoint_digest(CHECKPOINT),
        fixed_ms=4.0,
        layers=dict.fromkeys(STACKS, 0.2),
        heads=dict.fromkeys(KINDS, Cost(open_ms=0.5, each_ms=0.5 / arch.heads)),
        neurons=dict.fromkeys(STACKS, Cost(open_ms=0.5, each_ms=0.5 / arch.ffn_dim, step=16)),
    )
    made = made.model_copy(update={"observations": (Observation(sizes=sizes, ms=1.1 * made.ms(sizes)),)})
    write_table(made, path)
    return path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The table of int8."""
    return table_at(tmp_path / "table.json", "int8")


@pytest.mark.slow
@pytest.mark.parametrize(("text", "precision", "suffix"), [("parallel", "int8", "-int8"), ("plain", "fp32", "")])
def test_from_a_model_to_served_levels(
    english: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, precision: Precision, suffix: str
) -> None:
    """In fp32 it is quicker: in int8, every model on the way is calibrated."""
    monkeypatch.setattr("hmc.pipelines.pruning.latency.SENTENCES", 12)
    table = table_at(tmp_path / "table.json", precision)
    out, data = tmp_path / "run", f"{ENGLISH} {GERMAN}"
    given = ("--data", data, "--dev", data, "--distill", "0.9") if text == "parallel" else ("--source", english)
    speedups = {"1.5x": 1.5} if text == "parallel" else {"2x": 2}
    ran = done(run(
        "prune", CHECKPOINT, *given, "--target-speedup", ",".join(speedups), "--latency-table", table, *SERVING, *QUICK,
        "--serve-precision", precision, "-o", out, "--json",
    ))  # fmt: skip
    rows = json.loads(ran.stdout)
    assert rows == json.loads((out / "latency-report.json").read_text())
    assert [row["name"] for row in rows] == ["whole", *speedups]
    whole = read_table(table).observed_ms(sizes_of(load_checkpoint(CHECKPOINT)))
    assert rows[0]["goal_ms"] is None
    assert [row["goal_ms"] for row in rows[1:]] == pytest.approx([whole / times for times in speedups.values()])
    assert rows[0]["speedup"] == 1
    for row in rows[1:]:
        found = load_checkpoint(Path(row["checkpoint"]))
        assert found.config.provenance["latency"]["tried"], "models were measured on the way"
        assert row["sizes"] == str(sizes_of(found))
        assert row["ms"] == pytest.approx(whole / row["speedup"])
        assert row["kept"] == (row["ms"] <= row["goal_ms"])
    assert [level.name for level in validate(out / "bundle").levels] == [f"{row['name']}{suffix}" for row in rows]
    with Translator(out / "bundle", f"{rows[-1]['name']}{suffix}", threads=1) as translator:
        assert translator.translate(["A dog runs across the grass."], segmentation="none")[0].text


def test_pruning_for_another_device_counts_what_programs_do(tmp_path: Path) -> None:
    """Nothing is timed. What goes on a GPU is whole layers and attentions: heads cost next to nothing there."""
    checkpoint = tiny_checkpoint_at(tmp_path / "c")
    data, out = write_pair(tmp_path, SENTENCES * 2), tmp_path / "run"
    ran = done(run(
        "prune", tmp_path / "c", "--data", data, "--dev", data, "--target-speedup", "1.3x", "--serve", "cuda",
        "--serve-beam", "1", "--control", *QUICK, "-o", out, "--json",
    ))  # fmt: skip
    [_, row] = json.loads(ran.stdout)
    table = read_table(out / "latency.json")
    assert (table.setting.device, table.setting.precision) == ("cuda, counted", "fp16")
    assert [level.name for level in validate(out / "bundle").levels] == ["whole-fp16", "1.3x-fp16"]
    assert row["kept"]
    assert row["ms"] == pytest.approx(table.ms(sizes_of(load_checkpoint(out / "1.3x"))), rel=0.02)
    left = sizes_of(load_checkpoint(out / "1.3x"))
    for kind in KINDS:
        assert set(left.heads[kind]) <= {0, checkpoint.architecture.heads}, "what stays has all of its heads"
    assert load_checkpoint(out / "control").layout == checkpoint.layout
    again = done(run(
        "prune", tmp_path / "c", "--data", data, "--dev", data, "--target-speedup", "1.3x", "--serve", "cuda",
        "--serve-beam", "1", "--control", *QUICK, "-o", out, "--json",
    ))  # fmt: skip
    assert json.loads(again.stdout)[1] == row


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--target-speedup", "2x", "--target-heads", "50%"), "--target-heads is not for a latency"),
        (("--target-speedup", "2x", "--nested-steps", "5"), "--nested-steps is not for a latency"),
        (("--target-speedup", "0.5x"), "--target-speedup: give numbers above 1"),
        (("--target-speedup", "fast"), "'fast' is not a positive number; write 2x"),
        (("--target-latency-ms", "-3"), "'-3' is not a positive number; write 2ms"),
        (("--target-heads", "50%", "--latency-table", "t.json"), "--latency-table needs"),
        (("--target-speedup", "2x", "--serve-precision", "int9"), "--serve-precision int9: choose"),
        (("--target-speedup", "2x", "--serve-precision", "fp16"), "fp16 runs on CUDA"),
        (("--target-speedup", "2x", "--serve", "tpu"), "--serve tpu: choose 'here', 'cpu' or 'cuda'"),
        (
            ("--target-speedup", "2x", "--serve", "cuda", "--serve-precision", "int8"),
            "--serve cuda: it counts",
        ),
        (("--target-speedup", "2x", "--serve-batch", "0"), "--serve-batch 0: choose 1 or more"),
        (("--target-speedup", "2x", "--serve-batch", "999"), "--serve-batch 999: choose 256 or less"),
        (("--target-speedup", "2x", "--serve-beam", "1000"), "--serve-beam 1000: choose 1 to 16"),
        (("--target-speedup", "2x", "--scope", "cross"), "--scope is not for a latency"),
        (("--target-speedup", "2x", "--l0-lambda", "0.1"), "--l0-lambda is not for a latency"),
        (("--target-speedup", "2x", "--settle-gates"), "--settle-gates is not for a latency"),
        (("--target-speedup", "2x", "--temperature", "2"), "no distribution is learned from a teacher"),
        (("--target-speedup", "2x", "--compile"), "leave --compile out"),
        (("--target-speedup", "2x,2x"), "give each latency target once, not 2x, 2x"),
        (("--target-speedup", "50x", "--latency-table", "TABLE", *SERVING), "50x: .* ms cannot be reached"),
        (("--target-speedup", "1.5x", "--latency-table", "TABLE"), "table is of .* batch 2, .*: give the same"),
    ],
)
def test_what_does_not_go_together_is_refused(
    table: Path, tmp_path: Path, words: tuple[str, ...], problem: str
) -> None:
    data = f"{ENGLISH} {GERMAN}"
    given = [table if word == "TABLE" else word for word in words]
    ran = run("prune", CHECKPOINT, "--data", data, "--dev", data, *given, *QUICK, "-o", tmp_path / "run")
    assert ran.exit_code != 0
    assert re.search(problem, " ".join(ran.output.split())), ran.output
    assert not (tmp_path / "run").exists()
