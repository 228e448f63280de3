"""Whole runs on a tiny corpus: train, kill and resume exactly, prune to exact budgets, nested fine-tuning."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.tiny import SENTENCES

from hmc.artifact.checkpoint import load_checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.training.nested import nested_finetune
from hmc.training.prune_settings import PruneSettings
from hmc.training.pruner import PruningRun
from hmc.training.recipe import Recipe, RunSection
from hmc.training.trainer import train

STEPS = 12
RUN_A_RECIPE = """
import sys
from pathlib import Path
from hmc.training.recipe import Recipe
from hmc.training.trainer import train
train(Recipe.model_validate_json(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """'SRC TGT' of the tiny sentences; the target is the source in capitals."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "t.en").write_text("\n".join(SENTENCES * 4) + "\n")
    (folder / "t.de").write_text("\n".join(s.upper() for s in SENTENCES * 4) + "\n")
    return f"{folder}/t.en {folder}/t.de"


def recipe(corpus: str, **run: object) -> Recipe:
    """A run of STEPS steps with dropout, so that random numbers matter."""
    return Recipe.model_validate(
        {
            "data": {"train": [corpus], "dev": corpus},
            "tokenizer": {"vocab_size": 120},
            "model": {
                "d_model": 32,
                "ffn_dim": 48,
                "encoder_layers": 1,
                "decoder_layers": 2,
                "heads": 2,
                "max_positions": 128,
            },
            "train": {"steps": STEPS, "batch_tokens": 512, "warmup_steps": 4, "dropout": 0.2, "accumulate": 2},
            "run": {"device": "cpu", "save_every": 3, "eval_every": 6, "eval_sentences": 3, "log_every": 3, **run},
        }
    )


def start(settings: Recipe, out: Path) -> subprocess.Popen[bytes]:
    """A run in a process of its own, where no other library of this one has changed how numbers are computed."""
    description = out.with_suffix(".json")
    description.write_text(settings.model_dump_json())
    return subprocess.Popen(
        [sys.executable, "-c", RUN_A_RECIPE, str(description), str(out)],
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )


@pytest.fixture(scope="module")
def trained(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run folder."""
    out = tmp_path_factory.mktemp("run") / "run"
    assert start(recipe(corpus), out).wait() == 0
    return out


def test_a_run_leaves_checkpoints_logs_and_scores(trained: Path) -> None:
    final = load_checkpoint(trained / "final")
    assert final.layout.total == 2 + 4 + 4
    assert "sacrebleu" in json.dumps(final.metrics) or "nrefs" in final.metrics["dev"]["bleu_signature"]
    assert final.config.provenance["recipe"]["train"]["steps"] == STEPS
    losses = [json.loads(line)["loss"] for line in (trained / "log.jsonl").read_text().splitlines() if "loss" in line]
    assert losses[-1] < losses[0]
    assert list((trained / "tensorboard").iterdir())


@pytest.mark.slow
def test_kill_9_and_resume_is_bit_equal(corpus: str, trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start(recipe(corpus), out)
    deadline = time.monotonic() + 120
    while not (out / "state" / "progress.json").is_file() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert json.loads((out / "state" / "progress.json").read_text())["step"] <= STEPS
    assert start(recipe(corpus), out).wait() == 0
    resumed, whole = (load_checkpoint(p / "final") for p in (out, trained))
    assert all(np.array_equal(resumed.tensors[n], whole.tensors[n]) for n in whole.tensors)


def test_a_run_folder_belongs_to_one_recipe(corpus: str, trained: Path) -> None:
    other = recipe(corpus).model_copy(update={"train": recipe(corpus).train.model_copy(update={"seed": 9})})
    with pytest.raises(InvalidRequestError, match="another recipe"):
        train(other, trained)


SETTINGS = PruneSettings(
    close_steps=60,
    recover_steps=5,
    gate_rate=0.2,
    batch_tokens=512,
    run=RunSection(device="cpu", eval_sentences=3, log_every=20, save_every=20),
)


def test_prune_ends_at_exact_budgets(corpus: str, trained: Path, tmp_path: Path) -> None:
    written = PruningRun(trained / "final", [6, 3], [corpus], corpus, tmp_path / "p", SETTINGS).run()
    assert [p.name for p in written] == ["h6", "h3"]
    for path, budget in zip(written, (6, 3), strict=True):
        pruned = load_checkpoint(path)
        assert pruned.layout.total == budget
        assert pruned.gates is not None
        assert pruned.gates["cross"].shape == (2, 2)
        assert {"dev_before", "dev_after"} <= pruned.metrics.keys()
        assert pruned.config.provenance["trajectory"][-1]["open"] == pytest.approx(budget, abs=2.0)
    nested = nested_finetune(trained / "final", written, [corpus], corpus, tmp_path / "p", SETTINGS, 6)
    checkpoint = load_checkpoint(nested)
    assert checkpoint.layout.total == 10
    assert {"dev_h10", "dev_h6", "dev_h3"} == checkpoint.metrics.keys()


def test_lambda_form_closes_heads_when_the_penalty_is_large(corpus: str, trained: Path, tmp_path: Path) -> None:
    counts = []
    for strength in (1e-4, 2.0):
        settings = SETTINGS.model_copy(update={"l0_lambda": strength})
        [path] = PruningRun(trained / "final", [], [corpus], corpus, tmp_path / str(strength), settings).run()
        counts.append(load_checkpoint(path).layout.total)
    assert counts[0] > counts[1]


@pytest.mark.parametrize(
    ("targets", "message"), [([], "--target-heads"), ([10], "below the 10 heads"), ([3, 6], "falling budgets")]
)
def test_impossible_budgets(corpus: str, trained: Path, tmp_path: Path, targets: list[int], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        PruningRun(trained / "final", targets, [corpus], corpus, tmp_path / "p", SETTINGS)
