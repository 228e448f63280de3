"""Whole runs on a tiny corpus: train, kill and resume exactly, prune to exact budgets, nested fine-tuning."""

from __future__ import annotations

import gzip
import json
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.once import Once
from tests.support.files import write_pair
from tests.support.forks import Forks, forking
from tests.support.recipes import small_recipe
from tests.tiny import SENTENCES

from hmc.artifact import InvalidRequestError, load_checkpoint
from hmc.training import PruneRequest, PruneSettings, PruningRun, Recipe, nested_finetune, train
from hmc.training.runs.recipe import RunSection

STEPS = 12
SCRIPT = Path(__file__).with_name("one_run.py")


def _corpus_at(path: Path) -> None:
    write_pair(path, SENTENCES * 4)


@pytest.fixture(scope="module")
def corpus(once: Once) -> str:
    """'SRC TGT' of the tiny sentences; the target is the source in capitals."""
    folder = once(_corpus_at)
    return f"{folder / 't.en'} {folder / 't.de'}"


def recipe(corpus: str, **run: object) -> Recipe:
    """A run of STEPS steps with dropout, so that random numbers matter."""
    settings = {"steps": STEPS, "dropout": 0.2, "accumulate": 2}
    basic = {"save_every": 3, "eval_every": 6, "eval_sentences": 3, "log_every": 3}
    return small_recipe(corpus, model={"heads": 2}, train=settings, run=basic | run)


def run(forks: Forks, settings: Recipe, out: Path, stop: int = 0) -> int:
    """A run in a process of its own, where no library of this process has changed how numbers are computed.

    stop: the update in which the process is killed; 0: it runs to its end. Returns its status.
    """
    description = out.with_suffix(".json")
    description.write_text(settings.model_dump_json())
    return forks.run(SCRIPT, description, out, str(stop))


def _trained_at(path: Path, corpus: str) -> None:
    path.mkdir()
    with forking() as others:  # with another hash seed than that of runs that are compared with it
        assert run(others, recipe(corpus), path / "run") == 0


@pytest.fixture(scope="module")
def trained(corpus: str, once: Once) -> Path:
    """A finished run folder."""
    return once(_trained_at, corpus) / "run"


def test_a_run_leaves_checkpoints_logs_and_scores(trained: Path) -> None:
    final = load_checkpoint(trained / "final")
    assert final.layout.total == 2 + 4 + 4
    assert "sacrebleu" in json.dumps(final.metrics) or "nrefs" in final.metrics["dev"]["bleu_signature"]
    assert final.config.provenance["recipe"]["train"]["steps"] == STEPS
    losses = [json.loads(line)["loss"] for line in (trained / "log.jsonl").read_text().splitlines() if "loss" in line]
    assert losses[-1] < losses[0]
    assert list((trained / "tensorboard").iterdir())


def as_shards(form: str, folder: Path) -> str:
    """The corpus in two shards of JSONL or Parquet."""
    rows = [{"en": sentence, "de": sentence.upper()} for sentence in SENTENCES * 4]
    for number, part in enumerate((rows[:20], rows[20:])):
        if form == "jsonl.gz":
            lines = "".join(json.dumps(row) + "\n" for row in part)
            (folder / f"{number}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
        else:
            pq.write_table(pa.Table.from_pylist(part), folder / f"{number}.parquet", row_group_size=7)
    return f"{folder}/*.{form}"


def kill_and_resume(forks: Forks, settings: Recipe, out: Path) -> None:
    """The process is killed in update 8, two updates after it saved its last state; another finishes the run."""
    assert run(forks, settings, out, stop=8) == -signal.SIGKILL
    assert json.loads((out / "state" / "progress.json").read_text())["step"] == 6
    assert not (out / "final").exists()
    assert run(forks, settings, out) == 0
    steps = [json.loads(line)["step"] for line in (out / "log.jsonl").read_text().splitlines() if "loss" in line]
    assert steps == sorted(set(steps)), "updates that were made again are logged once"


def equal(a: Path, b: Path) -> bool:
    """Whether two runs ended with the same weights."""
    left, right = (load_checkpoint(out / "final").tensors for out in (a, b))
    return left.keys() == right.keys() and all(np.array_equal(left[n], right[n]) for n in right)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["text", "jsonl.gz", "parquet"])
def test_kill_9_and_resume_is_bit_equal(form: str, corpus: str, trained: Path, forks: Forks, tmp_path: Path) -> None:
    """Whatever form the text has, the run equals that of text files that nothing interrupted."""
    text = corpus if form == "text" else as_shards(form, tmp_path)
    kill_and_resume(forks, recipe(text), tmp_path / "run")
    assert equal(tmp_path / "run", trained)


@pytest.mark.slow
def test_a_run_with_muon_resumes_exactly_too(corpus: str, trained: Path, forks: Forks, tmp_path: Path) -> None:
    adam = recipe(corpus)
    settings = adam.model_copy(update={"train": adam.train.model_copy(update={"optimizer": "muon"})})
    kill_and_resume(forks, settings, tmp_path / "killed")
    assert run(forks, settings, tmp_path / "whole") == 0
    assert equal(tmp_path / "killed", tmp_path / "whole")
    assert not equal(tmp_path / "whole", trained)


@pytest.mark.parametrize("form", ["jsonl.gz", "parquet"])
def test_a_run_is_not_resumed_with_other_rows(form: str, tmp_path: Path) -> None:
    settings = recipe(as_shards(form, tmp_path))
    train(settings, tmp_path / "run")
    for number in (0, 1):
        (tmp_path / f"{number}.{form}").rename(tmp_path / f"{9 - number}.{form}")  # the shards change places
    with pytest.raises(InvalidRequestError, match=r"the training text, or its tokens in cache/, is not what .*/state"):
        train(settings, tmp_path / "run")


def test_a_run_folder_belongs_to_one_recipe(corpus: str, trained: Path) -> None:
    other = recipe(corpus).model_copy(update={"train": recipe(corpus).train.model_copy(update={"seed": 9})})
    with pytest.raises(InvalidRequestError, match="another recipe"):
        train(other, trained)


SETTINGS = PruneSettings(
    close_steps=40,
    recover_steps=5,
    gate_rate=0.2,
    batch_tokens=128,
    run=RunSection(device="cpu", eval_sentences=3, log_every=20, save_every=20),
)


def test_prune_ends_at_exact_budgets(corpus: str, trained: Path, tmp_path: Path) -> None:
    written = PruningRun(PruneRequest(trained / "final", [6, 3], [corpus], corpus, tmp_path / "p", SETTINGS)).run()
    assert [p.name for p in written] == ["h6", "h3"]
    for path, budget in zip(written, (6, 3), strict=True):
        pruned = load_checkpoint(path)
        assert pruned.layout.total == budget
        assert pruned.gates is not None
        assert pruned.gates["cross"].shape == (2, 2)
        assert {"dev_before", "dev_after"} <= pruned.metrics.keys()
        assert pruned.config.provenance["trajectory"][-1]["open"] == pytest.approx(budget, abs=2.0)
    nested = nested_finetune(
        PruneRequest(trained / "final", (), [corpus], corpus, tmp_path / "p", SETTINGS, nested_steps=6), written
    )
    checkpoint = load_checkpoint(nested)
    assert checkpoint.layout.total == 10
    assert {"dev_h10", "dev_h6", "dev_h3"} == checkpoint.metrics.keys()


def test_lambda_form_closes_heads_when_the_penalty_is_large(corpus: str, trained: Path, tmp_path: Path) -> None:
    counts = []
    for strength in (1e-4, 2.0):
        settings = SETTINGS.model_copy(update={"l0_lambda": strength, "settle_gates": True})
        [path] = PruningRun(
            PruneRequest(trained / "final", [], [corpus], corpus, tmp_path / str(strength), settings)
        ).run()
        counts.append(load_checkpoint(path).layout.total)
    assert counts[0] > counts[1]


@pytest.mark.parametrize(
    ("targets", "message"), [([], "target_heads"), ([10], "below the 10 open heads"), ([3, 6], "falling budgets")]
)
def test_impossible_budgets(corpus: str, trained: Path, tmp_path: Path, targets: list[int], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        PruningRun(PruneRequest(trained / "final", targets, [corpus], corpus, tmp_path / "p", SETTINGS))
