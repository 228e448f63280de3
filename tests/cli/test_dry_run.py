"""`--dry-run` of long commands: inputs are checked, what would be done is said, and nothing is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Hmc
from tests.command import done
from tests.support.files import bytes_of, write_pair
from tests.tiny import SENTENCES, tiny_checkpoint_at

from hmc.training import load_recipe, train

RECIPE = """
[data]
train = [{text}]
dev = {text}
[tokenizer]
vocab_size = 120
[model]
d_model = 32
ffn_dim = 48
encoder_layers = 1
decoder_layers = 2
heads = 2
[train]
steps = 4
batch_tokens = 256
[run]
device = "cpu"
save_every = 2
eval_every = 4
eval_sentences = 3
"""


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    return write_pair(tmp_path / "text", SENTENCES)


def test_a_training_is_told_and_not_begun(hmc: Hmc, corpus: str, tmp_path: Path) -> None:
    recipe, out = tmp_path / "r.toml", tmp_path / "run"
    recipe.write_text(RECIPE.replace("{text}", json.dumps(corpus)))
    ran = done(hmc("train", recipe, "-o", out, "--dry-run", "--set", "train.optimizer=muon"))
    lines = dict(line.split(": ", 1) for line in ran.stdout.splitlines())
    assert lines["model"] == "1 + 2 layers of 2 heads, width 32, feed-forward 48"
    assert lines["updates"] == "4 of 256 tokens, by muon"
    assert lines["folder"] == f"{out}: a new run"
    assert not out.exists()
    train(load_recipe(recipe), out)
    before = bytes_of(out)
    told = json.loads(hmc("train", recipe, "-o", out, "--dry-run", "--json").stdout)
    assert told["folder"] == f"{out}: goes on after 4 updates"
    assert bytes_of(out) == before
    for words, message in (
        (("--set", "train.steps=5"), "holds a run of another recipe"),
        (("--set", "data.dev='absent.tsv'"), "absent.tsv"),
    ):
        ran = hmc("train", recipe, "-o", out, "--dry-run", *words)
        assert (ran.exit_code, message in ran.stderr) == (2, True), ran.output


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.headmask='random:10'", "random:10"),
        ("train.headmask='important:2/attention'", "important:2/attention"),
        ("model.layout='absent.json'", "absent.json"),
        ("model.start_from='absent'", "absent"),
        ("tokenizer.model='absent'", "absent"),
        ("distill.weight=0.5", "distillation needs a teacher"),
        ("distill.teacher='absent'", "nothing is learned from it"),
    ],
)
def test_what_a_training_would_refuse_later_is_said_at_once(
    hmc: Hmc, corpus: str, tmp_path: Path, setting: str, message: str
) -> None:
    recipe, out = tmp_path / "r.toml", tmp_path / "run"
    recipe.write_text(RECIPE.replace("{text}", json.dumps(corpus)))
    for words in (("--dry-run",), ()):
        ran = hmc("train", recipe, "-o", out, "--set", setting, *words)
        assert (ran.exit_code, message in ran.stderr) == (2, True), ran.output
    assert not out.exists()


def test_a_pruning_is_told_and_not_begun(hmc: Hmc, corpus: str, tmp_path: Path) -> None:
    checkpoint, out = tmp_path / "model", tmp_path / "out"
    tiny_checkpoint_at(checkpoint)
    text = ("--data", corpus, "--dev", corpus)
    words = ("prune", checkpoint, *text, "-o", out, "--target-heads", "12,6", "--recover-steps", "70", "--dry-run")
    ran = done(hmc(*words))
    assert f"{out / 'h12'}: close, 1,500 updates, recover, 70 updates\n" in ran.stdout
    assert f"{out / 'h6'}: " in ran.stdout
    assert "by adam" in ran.stdout
    assert not out.exists()
    for more, message in (
        (("--target-heads", "99"), "below the 24 heads"),
        (("--target-speedup", "2x"), "known only after translating or measuring"),
    ):
        ran = hmc("prune", checkpoint, *text, "-o", out, *more, "--dry-run")
        assert (ran.exit_code, message in ran.stderr) == (2, True), ran.output
    assert not out.exists()


def test_a_ranking_without_closing_is_told_as_one_training(hmc: Hmc, corpus: str, tmp_path: Path) -> None:
    tiny_checkpoint_at(tmp_path / "model")
    words = ("--target-heads", "12,6", "--nested-steps", "9", "--nested-heads", "importance", "--dry-run")
    ran = done(hmc("prune", tmp_path / "model", "--data", corpus, "--dev", corpus, "-o", tmp_path / "out", *words))
    assert "nested: 9 updates\n" in ran.stdout
    assert "close" not in ran.stdout
