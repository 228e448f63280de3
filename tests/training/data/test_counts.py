"""What training text loses on the way is counted by reason, and said by every command that trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.recipes import small_recipe
from tests.tiny import SENTENCES, tiny_checkpoint_at, tiny_tokenizer

from hmc.artifact import InvalidRequestError
from hmc.artifact.model.budgets import HeadBudget
from hmc.artifact.model.heads import KINDS
from hmc.training import PruneRequest, PruneSettings, Vocabulary, prune, train
from hmc.training.data.corpus import Splitting, TokenCorpus, count_pairs
from hmc.training.data.counts import Limit
from hmc.training.data.parallel_text import read_dev
from hmc.training.runs.recipe import RunSection


def total(heads: int) -> HeadBudget:
    return HeadBudget(((KINDS, heads),))


SHORT = "A dog."
LONG = " ".join(SENTENCES[:4])
EN_DE = ("en", "de")
LIMIT = Limit(30, "data.max_length")


@pytest.fixture
def tsv(tmp_path: Path) -> str:
    """Eight pairs of six tokens or so; two with an empty side; two that are long; one line has a third column."""
    rows = [f"{SHORT}\t{SHORT}"] * 7 + [f"{SHORT}\t{SHORT}\tmore", f"{SHORT}\t", f" \t{SHORT}"]
    rows += [f"{LONG}\t{SHORT}", f"{SHORT}\t{LONG}"]
    (tmp_path / "t.tsv").write_text("".join(row + "\n" for row in rows))
    return str(tmp_path / "t.tsv")


def test_pairs_are_counted_by_reason(tsv: str, tmp_path: Path) -> None:
    vocabulary = Vocabulary(tiny_tokenizer())
    built = [TokenCorpus.build([tsv], vocabulary, LIMIT.tokens, tmp_path / "cache", EN_DE) for _ in range(2)]
    counts = built[0].counts
    assert (counts.pairs, counts.kept, counts.empty, counts.too_long) == (12, 8, 2, 2)
    assert len(built[0]) == 8
    assert built[1].counts == counts == count_pairs([tsv], EN_DE, vocabulary, LIMIT.tokens)
    lengths = [len(vocabulary.encode(side, target=True)) for side in [SHORT] * 8 + ["", SHORT, SHORT, LONG]]
    assert (counts.tokens, counts.lost_tokens) == (sum(lengths), sum(lengths[-2:]))
    assert counts.summary(LIMIT) == (
        "8 of 12 sentence pairs; left out: 2 with an empty side, 2 longer than 30 tokens (data.max_length)"
    )


def test_much_is_a_warning_that_names_the_setting(tsv: str) -> None:
    counts = count_pairs([tsv], EN_DE, Vocabulary(tiny_tokenizer()), LIMIT.tokens)
    share = f"{counts.lost_tokens / counts.tokens:.0%}"
    columns, empty, long = counts.warnings(LIMIT)
    assert f"{tsv} line 8: 'A dog.' and 'A dog.'" in columns
    assert empty == "17% of the pairs have an empty side, and are left out"
    assert long == (
        f"{share} of the target tokens are left out, in pairs longer than 30 tokens (data.max_length): raise "
        "data.max_length, or divide long texts into sentences"
    )
    counts.lost_tokens = int(0.05 * counts.tokens)
    assert len(counts.warnings(LIMIT)) == 2


def test_where_the_model_has_no_more_positions(tsv: str) -> None:
    limit = Limit.within(128, 30, "--max-length")
    counts = count_pairs([tsv], EN_DE, Vocabulary(tiny_tokenizer()), limit.tokens)
    assert counts.warnings(limit)[-1].endswith(
        "30 tokens (the positions of the model): divide long texts into sentences"
    )
    assert Limit.within(20, 30, "--max-length") == Limit(20, "--max-length")


def test_without_a_vocabulary_only_empty_sides_are_known(tsv: str) -> None:
    counts = count_pairs([tsv, "hub:some/name"], EN_DE, None, 30)
    assert (counts.pairs, counts.empty, counts.too_long, counts.more_columns) == (12, 2, 0, 1)


def test_every_segmentation_is_a_pair(tsv: str, tmp_path: Path) -> None:
    drawn = Splitting(0.1, 3, 1)
    corpus = TokenCorpus.build([tsv], Vocabulary(tiny_tokenizer()), 300, tmp_path / "cache", EN_DE, drawn)
    assert (corpus.counts.pairs, corpus.counts.empty, len(corpus)) == (36, 6, 30)


def test_nothing_left_says_why(tsv: str, tmp_path: Path) -> None:
    reasons = r"of 1 to 2 tokens a side; left out: 2 with an empty side, 10 longer than 2 tokens"
    with pytest.raises(InvalidRequestError, match=reasons):
        TokenCorpus.build([tsv], Vocabulary(tiny_tokenizer()), 2, tmp_path / "cache", EN_DE)


def test_dev_pairs_that_are_left_out(tsv: str) -> None:
    dev, vocabulary = read_dev(tsv, EN_DE, 12), Vocabulary(tiny_tokenizer())
    assert dev.summary() == "10 of 10 pairs are scored (2 with an empty side are left out)"
    assert [text.split(",")[0] for text in dev.warnings(vocabulary, 30)[-1:]] == [
        "1 of the dev sources that are scored are longer than the 30 positions of the model"
    ]
    assert len(dev.warnings(vocabulary, 300)) == 2


def test_training_and_pruning_say_what_is_left_out(
    tsv: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "training text: 8 of 12 sentence pairs; left out: 2 with an empty side, 2 longer than "
    tiny_checkpoint_at(tmp_path / "tiny")
    sections: dict[str, dict[str, Any]] = {
        "data": {"max_length": 30},
        "tokenizer": {"model": str(tmp_path / "tiny")},
        "train": {"steps": 1},
    }
    train(small_recipe(tsv, **sections), tmp_path / "run")
    lines = capsys.readouterr().err.splitlines()
    assert said + "30 tokens (data.max_length)" in lines
    assert "dev text: 1 of 10 pairs are scored (2 with an empty side are left out)" in lines
    assert any(line.startswith("warning: 1 lines have more than two columns") for line in lines)
    settings = PruneSettings(
        close_steps=10, recover_steps=0, max_length=30, run=RunSection(device="cpu", eval_sentences=1)
    )
    prune(PruneRequest(tmp_path / "tiny", [total(12)], [tsv], tsv, tmp_path / "pruned", settings, nested_steps=1))
    lines = capsys.readouterr().err.splitlines()
    assert lines.count(said + "30 tokens (--max-length)") == 2  # and nested fine-tuning
    assert sum("raise --max-length" in line for line in lines) == 2
