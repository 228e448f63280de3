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


def test_a_training_is_told_and_not_begun(
    hmc: Hmc, corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, out = tmp_path / "r.toml", tmp_path / "run"
    recipe.write_text(RECIPE.replace("{text}", json.dumps(corpus)))
    ran = done(hmc("train", recipe, "-o", out, "--dry-run", "--set", "train.optimizer=muon"))
    lines = dict(line.split(": ", 1) for line in ran.stdout.splitlines())
    assert lines["model"] == "1 + 2 layers of 2 heads, width 32, feed-forward 48"
    assert lines["updates"] == "4 of 256 tokens, by muon"
    assert lines["text"].endswith(
        f" (en to de): {len(SENTENCES)} sentence pairs; which of them are longer than 128 tokens (data.max_length) "
        "shows when the tokenizer is trained"
    )
    assert lines["warning"].startswith("train.steps 4 end before the warm-up does (train.warmup_steps 4,000)")
    assert lines["folder"] == f"{out}: a new run"
    assert not out.exists()
    train(load_recipe(recipe), out)
    assert "warning: train.steps 4 end before the warm-up" in capsys.readouterr().err
    before = bytes_of(out)
    told = json.loads(hmc("train", recipe, "-o", out, "--dry-run", "--json").stdout)
    assert told["folder"] == f"{out}: goes on after 4 updates"
    assert told["text"].endswith(f"(en to de): {len(SENTENCES)} sentence pairs")
    assert bytes_of(out) == before
    for words, message in (
        (("--set", "train.seed=5"), "holds a run of another recipe (train.seed: 1 there, 5 here)"),
        (("--set", "train.steps=3"), "has made 4 updates of 4; give more than 4"),
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
    assert f"(en to de): {len(SENTENCES)} sentence pairs\n" in ran.stdout
    ran = done(hmc(*words, "--max-length", "8", "--warmup-steps", "9999"))
    assert "longer than 8 tokens (--max-length)" in ran.stdout
    assert "raise --max-length, or divide" in ran.stdout
    assert "the 3,140 updates end before the warm-up does (--warmup-steps 9999)" in ran.stdout.replace("9,999", "9999")
    assert not out.exists()
    for more, message in (
        (("--target-heads", "99"), "below the 24 open heads"),
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


def test_a_dry_run_reads_the_texts_to_their_end(hmc: Hmc, corpus: str, tmp_path: Path) -> None:
    """The last line of a text may be wrong too."""
    tiny_checkpoint_at(tmp_path / "model")
    recipe, late = tmp_path / "r.toml", tmp_path / "late.tsv"
    recipe.write_text(RECIPE.replace("{text}", json.dumps(corpus)))
    late.write_text("A dog.\tEin Hund.\n" * 50 + "no tab here\n")
    for words in (
        ("train", recipe, "--set", f"data.train=['{late}']"),
        ("prune", tmp_path / "model", "--data", late, "--dev", corpus, "--target-heads", "12"),
    ):
        ran = hmc(*words, "-o", tmp_path / "out", "--dry-run")
        assert (ran.exit_code, f"{late} line 51: no TAB" in ran.stderr) == (2, True), ran.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--serve-beam", "1000"), "--serve-beam needs --target-speedup"),
        (("--serve-precision", "nonsense"), "--serve-precision needs --target-speedup"),
        (("--serve-batch", "-5"), "--serve-batch needs --target-speedup"),
        (("--serve-threads", "3"), "--serve-threads needs --target-speedup"),
        (("--teacher", "absent"), "nothing is learned from it: set --distill"),
        (("--temperature", "2"), "no distribution is learned from a teacher: set --distill"),
        (("--temperature", "2", "--distill-hidden", "1"), "no distribution is learned from a teacher"),
        (("--teacher", "absent", "--distill", "0.5"), "absent"),
        (("--nested-levels", "one"), "--nested-levels needs --nested-steps"),
        (("--nested-between", "any"), "--nested-between needs --nested-steps"),
        (("--nested-shrink", "0.5"), "--nested-shrink needs --nested-steps"),
        (("--eval-every", "7"), "--eval-every needs --nested-steps"),
        (("--bpe-dropout-copies", "4"), "--bpe-dropout-copies 4 belongs to --bpe-dropout"),
        (
            ("--nested-steps", "9", "--nested-heads", "importance", "--close-steps", "20"),
            "--close-steps is for gates",
        ),
        (
            ("--nested-steps", "9", "--nested-heads", "importance", "--settle-gates"),
            "--settle-gates is for gates",
        ),
        (("--compile", "--device", "cpu"), "leave --compile out"),
    ],
)
def test_options_without_effect_are_refused(
    hmc: Hmc, corpus: str, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    tiny_checkpoint_at(tmp_path / "model")
    given = ("prune", tmp_path / "model", "--data", corpus, "--dev", corpus, "--target-heads", "12", *words)
    for more in (("--dry-run",), ()):
        ran = hmc(*given, "-o", tmp_path / "out", *more)
        assert (ran.exit_code, message in ran.stderr) == (2, True), ran.output
    assert not (tmp_path / "out").exists()
