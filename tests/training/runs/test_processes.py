"""Two processes (gloo, CPU) learn what one process does and resume exactly; their number cannot change."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from tests.command import refused, run_hmc
from tests.processes import environment
from tests.support.files import write_pair
from tests.support.forks import Forks
from tests.support.recipes import small_recipe
from tests.tiny import SENTENCES, tiny_checkpoint_at

from hmc.artifact import Checkpoint, InvalidRequestError, load_checkpoint
from hmc.training import Recipe, Vocabulary, train
from hmc.training.data.batches import plan_epoch
from hmc.training.data.corpus import TokenCorpus

pytestmark = pytest.mark.slow
Seen = dict[str, dict[str, Any]]
"""What a process saw, by run."""
MASKS = (None, "random:3", "important:3")
STEPS = 24


def recipe(corpus: str, processes: int, steps: int, **settings: object) -> Recipe:
    """A run whose updates have two batches: one process accumulates them, two processes take one each."""
    basic = {"steps": steps, "batch_tokens": 400, "warmup_steps": 20, "dropout": 0.0, "adam_epsilon": 1e-6}
    run = {"devices": processes, "log_every": 1, "save_every": 6, "eval_every": steps}
    return small_recipe(corpus, train=basic | {"accumulate": 2 // processes} | settings, run=run)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An even number of batches an epoch, so that both ways of running see the same pairs in every update."""
    folder = tmp_path_factory.mktemp("corpus")
    return write_pair(folder, SENTENCES * 4)


@pytest.fixture(scope="module")
def folder(corpus: str, forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two processes: `none`, `random`, `important`, `whole`, `resumed`, `patient`; pruning runs `prune`,
    `neurons`."""
    folder = tmp_path_factory.mktemp("two")
    tiny_checkpoint_at(folder / "c", gates=False)
    runs = [(str(mask).partition(":")[0].lower(), recipe(corpus, 2, STEPS, headmask=mask), 0) for mask in MASKS]
    noisy = recipe(corpus, 2, 12, dropout=0.3, headmask="random:25%")
    runs += [("whole", noisy, 0), ("resumed", noisy, 9)]
    patient = recipe(corpus, 2, 12, patience=2, warmup_steps=1, learning_rate=1e-7)  # so that no BLEU is better
    often = patient.run.model_copy(update={"eval_every": 2})
    runs += [("patient", patient.model_copy(update={"run": often}), 6)]
    run = {"device": "cpu", "devices": 2, "eval_sentences": 1, "log_every": 10, "save_every": 10}
    settings = {"close_steps": 20, "recover_steps": 4, "batch_tokens": 512, "run": run}
    description = {
        "train": [
            {"recipe": r.model_dump(mode="json"), "out": str(folder / name), "stop": stop} for name, r, stop in runs
        ],
        "prune": [
            {"source": str(folder / "c"), "targets": [9, 4], "neurons": "", "corpus": corpus,
             "out": str(folder / "prune"), "settings": settings},
            {"source": str(folder / "c"), "targets": [], "neurons": "50%", "corpus": corpus,
             "out": str(folder / "neurons"), "settings": settings},
        ],
    }  # fmt: skip
    (folder / "description.json").write_text(json.dumps(description))
    script = Path(__file__).with_name("two_processes.py")
    statuses = forks.run_group(script, folder / "description.json", folders=[folder, folder], devices=2)
    assert statuses == [0, 0], (folder / "stderr-0").read_text()[-4000:]
    return folder


TOML = """
[data]
train = ["{corpus}"]
dev = "{corpus}"
[tokenizer]
vocab_size = 120
[model]
d_model = 16
ffn_dim = 16
encoder_layers = 1
decoder_layers = 1
heads = 2
[train]
steps = 2
batch_tokens = 400
[run]
device = "cpu"
"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def hmc_train(launcher: tuple[str, ...], corpus: str, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """`hmc train` to `folder / "out"`, by torchrun or on its own."""
    (folder / "r.toml").write_text(TOML.format(corpus=corpus))
    return subprocess.run(
        [sys.executable, *launcher, "-m", "hmc.cli", "train", str(folder / "r.toml"), "--out", str(folder / "out"),
         "--json", *more],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("launcher", [TORCHRUN, ()], ids=["torchrun", "alone"])
def test_the_command_succeeds_and_reports_once(launcher: tuple[str, ...], corpus: str, tmp_path: Path) -> None:
    """Only the first process scores dev text; the second must wait until `final` is written."""
    finished = hmc_train(launcher, corpus, tmp_path, "--set", "run.devices=2")
    assert finished.returncode == 0, finished.stderr[-4000:]
    [row] = json.loads(finished.stdout)
    assert row["checkpoint"] == str(tmp_path / "out" / "final")
    assert load_checkpoint(tmp_path / "out" / "final").metrics["dev"] == row["metrics"]["dev"]
    assert "cannot be used" not in finished.stderr


@pytest.mark.parametrize("killed", ["first", "second"])
def test_a_killed_process_is_named_in_a_line(killed: str, corpus: str, tmp_path: Path) -> None:
    """No traceback, and the process that was not killed is not blamed."""
    out, said = tmp_path / "out", tmp_path / "said"
    (tmp_path / "r.toml").write_text(TOML.format(corpus=corpus))
    words = ["train", str(tmp_path / "r.toml"), "--out", str(out)]
    for setting in ("run.devices=2", "train.steps=100000", "run.log_every=1"):
        words += ["--set", setting]
    with said.open("w") as stderr:
        run = subprocess.Popen(
            [sys.executable, "-m", "hmc.cli", *words],
            env=environment(OMP_NUM_THREADS="1"), stdout=subprocess.DEVNULL, stderr=stderr,
        )  # fmt: skip
    try:
        log = out / "log.jsonl"
        while not (log.is_file() and '"loss"' in log.read_text()):
            assert run.poll() is None, said.read_text()
            time.sleep(0.2)
        [second] = psutil.Process(run.pid).children()
        (second if killed == "second" else psutil.Process(run.pid)).kill()
        code = run.wait(60)
        second.wait(60)
    finally:
        run.kill()
        run.wait()
    lines = [line for line in said.read_text().splitlines() if "hmc:" in line or "Traceback" in line]
    ended = "process 1 of the run was killed by SIGKILL, often because memory ran out"
    lost = "the connection to another process of the run is lost, which ended or was killed"
    what = ended if killed == "second" else lost
    assert lines == [f"hmc: {what}. What was saved stays, and the same command goes on from there"]
    assert code == (75 if killed == "second" else -9)


def test_a_first_process_that_waits_for_nobody_ends_all_the_same() -> None:
    """As while it scores dev text: nothing tells it that the connection is lost."""
    script = (
        "import subprocess\n"
        "from hmc.training.runs import processes\n"
        "processes.GRACE_SECONDS = {True: 0.1, False: 0.1}\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        "child.kill()\n"
        "processes._end_without((child,))\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], env=environment(), capture_output=True, text=True, check=False)
    assert ran.returncode == 75
    assert ran.stderr.startswith("hmc: process 1 of the run was killed by SIGKILL")


def test_torchrun_of_a_run_of_one_process_is_refused(
    corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, with the variables that torchrun sets."""
    for name, value in {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "RANK": 0, "LOCAL_RANK": 0, "GROUP_RANK": 0}.items():
        monkeypatch.setenv(name, str(value))
    (tmp_path / "r.toml").write_text(TOML.format(corpus=corpus))
    finished = refused(run_hmc(["train", str(tmp_path / "r.toml"), "--out", str(tmp_path / "out")]))
    assert "2 processes were started" in " ".join(finished.stderr.split())
    assert not (tmp_path / "out").exists()


def losses(out: Path) -> list[float]:
    """Training loss of every update, in order; one line each even with several processes."""
    rows = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    found = [(row["step"], row["loss"]) for row in rows if "loss" in row]
    assert [step for step, _ in found] == list(range(1, len(found) + 1))
    return [loss for _, loss in found]


def same(a: Checkpoint, b: Checkpoint) -> bool:
    return all(np.array_equal(a.tensors[n], b.tensors[n]) for n in a.tensors)


@pytest.mark.parametrize("mask", MASKS)
def test_two_processes_learn_what_one_does_on_the_same_global_batch(
    mask: str | None, folder: Path, corpus: str, tmp_path: Path
) -> None:
    single = recipe(corpus, 1, STEPS, headmask=mask)
    train(single, tmp_path / "one")
    vocabulary = Vocabulary((tmp_path / "one" / "tokenizer.model").read_bytes())
    rows = TokenCorpus.build([corpus], vocabulary, 128, tmp_path / "cache", ("en", "de"))
    assert len(plan_epoch(rows, 400, 1, 0)) % 2 == 0, "choose another batch size: an epoch must split evenly"
    one, two = losses(tmp_path / "one"), losses(folder / str(mask).partition(":")[0].lower())
    assert len(one) == STEPS
    assert one[-1] < one[0]
    np.testing.assert_allclose(two, one, rtol=0, atol=1e-5)


def test_two_processes_resume_exactly(folder: Path) -> None:
    """With dropout, every process must restore its own random numbers."""
    assert same(load_checkpoint(folder / "whole" / "final"), load_checkpoint(folder / "resumed" / "final"))


def test_two_processes_end_early_together(folder: Path) -> None:
    """Only the first process knows the dev BLEU. The run broke off before the evaluation that ends it."""
    progress = json.loads((folder / "patient" / "state" / "progress.json").read_text())
    assert [entry["step"] for entry in progress["evaluations"]] == [2, 4, 6]
    assert progress["step"] == load_checkpoint(folder / "patient" / "final").config.provenance["updates"] == 6


def test_a_state_of_two_processes_is_not_resumed_by_one(folder: Path, corpus: str) -> None:
    settings = recipe(corpus, 2, 12, dropout=0.3, headmask="random:25%")
    alone = settings.model_copy(update={"run": settings.run.model_copy(update={"devices": 1})})
    with pytest.raises(InvalidRequestError, match=r"was saved by 2 process\(es\), and this run has 1"):
        train(alone, folder / "whole")


def test_two_processes_prune_to_exact_budgets(folder: Path) -> None:
    for heads in (9, 4):
        pruned = load_checkpoint(folder / "prune" / f"h{heads}")
        assert pruned.layout.total == heads
        assert pruned.config.provenance["unsettled_gates"] == {}


def test_two_processes_prune_neurons(folder: Path) -> None:
    pruned = load_checkpoint(folder / "neurons" / "f96")
    assert pruned.ffn_widths.total == 96
    assert pruned.config.provenance["unsettled_neurons"] == 0


@pytest.fixture(scope="module")
def failing(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both runs, one after the other in the same two processes: `loss` and `evaluation`."""
    folder = tmp_path_factory.mktemp("failing")
    settings = recipe(write_pair(folder / "text", SENTENCES * 4), 2, 4)
    description = {"recipe": settings.model_dump(mode="json"), "folder": str(folder)}
    (folder / "description.json").write_text(json.dumps(description))
    script = Path(__file__).with_name("failing_processes.py")
    statuses = forks.run_group(script, folder / "description.json", folders=[folder, folder], devices=2)
    assert statuses == [0, 0], (folder / "stderr-0").read_text()[-4000:]
    return folder


@pytest.fixture(scope="module")
def seen(failing: Path) -> tuple[Seen, Seen]:
    """What each process saw of each run."""
    first, second = (json.loads((failing / f"rank-{rank}.json").read_text()) for rank in (0, 1))
    return first, second


def test_a_loss_that_is_nan_in_one_process_is_skipped_in_both(failing: Path, seen: tuple[Seen, Seen]) -> None:
    first, second = (each["loss"] for each in seen)
    assert first == second
    assert not first["error"]
    assert all(math.isfinite(value) for value in first["sums"].values())
    rows = [json.loads(line) for line in (failing / "loss" / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row.get("skipped") == 1] == [2]
    assert [row["step"] for row in rows if "loss" in row] == [1, 3, 4]


def test_an_error_of_the_first_process_ends_both(seen: tuple[Seen, Seen]) -> None:
    first, second = (each["evaluation"] for each in seen)
    assert first["error"] == "the disk is full"
    assert second["error"] == "the first process stopped: the disk is full"
