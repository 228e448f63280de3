"""Head budgets and layout files: what is read, what is kept, what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.artifact.marian.opus import opus_directory
from tests.tiny import random_layout, tiny_architecture, tiny_checkpoint_at

from hmc.artifact import HeadBudget, HeadLayout, InvalidArtifactError, InvalidRequestError
from hmc.artifact.checkpoint.checkpoint import read_layout
from hmc.artifact.model.budgets import parse_budgets, parse_kinds
from hmc.artifact.model.heads import KINDS, HeadScores, select_heads

FULL = tiny_architecture().full_layout()


def scores() -> HeadScores:
    rng = np.random.default_rng(0)
    return {kind: rng.standard_normal((2, 4)).astype(np.float32) for kind in KINDS}


def counts(layout: HeadLayout) -> list[int]:
    return [sum(map(len, layout[kind])) for kind in KINDS]


def test_plain_numbers_are_budgets_for_the_scope() -> None:
    assert parse_budgets("72, 36") == [HeadBudget(((KINDS, 72),)), HeadBudget(((KINDS, 36),))]
    assert [b.name for b in parse_budgets("72,36")] == ["h72", "h36"]
    [budget] = parse_budgets("10", ["encoder_self"])
    assert (budget.name, budget.kinds) == ("enc10", ("encoder_self",))
    assert parse_budgets("") == []


def test_budgets_by_kind() -> None:
    first, second = parse_budgets("cross=6,enc=3,dec=5; enc=1,decoder_self=2,cross=4")
    assert (first.name, second.name) == ("enc3-dec5-cross6", "enc1-dec2-cross4")
    assert (first.heads, first.available(FULL)) == (14, 24)
    assert second.within(first)
    assert not first.within(second)
    assert not first.within(first)
    assert not parse_budgets("14")[0].within(first)


def test_both_forms_beside_each_other() -> None:
    budgets = parse_budgets("24,12;enc=3,dec=5;6")
    assert [budget.name for budget in budgets] == ["h24", "h12", "enc3-dec5", "h6"]
    assert ";".join(map(str, budgets)) == "24;12;enc=3,dec=5;6"


def test_shares_are_of_the_heads_there_are() -> None:
    asked: list[HeadLayout] = []

    def layout() -> HeadLayout:
        asked.append(select_heads(scores(), FULL, 17))
        return asked[-1]

    assert [budget.heads for budget in parse_budgets("100%, 50%,0%", layout=layout)] == [17, 8, 0]
    own, mixed = parse_budgets("25%;enc=50%,cross=1", ["encoder_self", "cross"], layout)
    in_scope = {kind: number for kind, number in zip(KINDS, counts(asked[0]), strict=True) if kind != "decoder_self"}
    assert own.heads == round(sum(in_scope.values()) / 4)
    assert dict(mixed.parts) == {("encoder_self",): round(in_scope["encoder_self"] / 2), ("cross",): 1}
    assert len(asked) == 2  # once a text
    assert parse_budgets("3", layout=layout) == parse_budgets("3")
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("101%", "101% is no share; choose 0% to 100%"), ("-1%", "no share"), ("nan%", "no share"),
        ("%", "no whole number and no share; write 72,36 or 50%,25% or enc="), ("enc=1e9%", "no share"),
    ],
)  # fmt: skip
def test_unreadable_shares(text: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        parse_budgets(text, layout=lambda: FULL)
    with pytest.raises(InvalidRequestError, match="no whole number; write 72,36 or enc="):
        parse_budgets(text)


def test_a_budget_keeps_the_best_of_each_part_and_all_outside() -> None:
    assert parse_budgets("9")[0].select(scores(), FULL) == select_heads(scores(), FULL, 9)
    kept = parse_budgets("enc=3,cross=1")[0].select(scores(), FULL)
    assert counts(kept) == [3, 8, 1]
    best = sorted(scores()["encoder_self"].ravel())[-3:]
    assert (
        sorted(scores()["encoder_self"][layer, i] for layer, row in enumerate(kept.encoder_self) for i in row) == best
    )
    assert kept.decoder_self == FULL.decoder_self


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("many", "no whole number"),
        ("enc=x", "no whole number"),
        ("foo=3", "no kind of head"),
        ("enc=3,enc=2", "given twice; separate budgets with ';'"),
        ("dec=3", "outside the scope encoder_self, cross"),
    ],
)
def test_unreadable_budgets(text: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        parse_budgets(text, ["encoder_self", "cross"])


@pytest.mark.parametrize("text", ["25", "-1", "enc=9", "enc=3,cross=9", "0", "enc=3,cross=0"])
def test_budgets_that_a_model_cannot_meet(text: str) -> None:
    [budget] = parse_budgets(text)
    assert budget.problems(FULL)
    with pytest.raises(InvalidRequestError, match=r"choose [01] to|could not see the source"):
        budget.select(scores(), FULL)


def test_kinds() -> None:
    assert parse_kinds("all", "--scope") == KINDS
    assert parse_kinds("cross, enc", "--scope") == ("encoder_self", "cross")
    with pytest.raises(InvalidRequestError, match="--scope 'encoder': 'encoder' is no kind"):
        parse_kinds("encoder", "--scope")


def test_layouts_are_read_from_checkpoints_and_json(tmp_path: Path) -> None:
    layout = random_layout(tiny_architecture(), 3)
    tiny_checkpoint_at(tmp_path / "c", layout=layout)
    (tmp_path / "layout.json").write_text(json.dumps(layout.to_json()))
    for path in (tmp_path / "c", tmp_path / "c" / "config.json", tmp_path / "layout.json"):
        assert read_layout(path) == layout
    (tmp_path / "c" / "model.safetensors").unlink()
    assert read_layout(tmp_path / "c") == layout
    (tmp_path / "c" / "config.json").write_text("{}")
    with pytest.raises(InvalidArtifactError, match=r"architecture"):
        read_layout(tmp_path / "c")
    (tmp_path / "c" / "config.json").unlink()
    with pytest.raises(InvalidArtifactError, match=r"config\.json is missing"):
        read_layout(tmp_path / "c")
    opus_directory(tmp_path / "opus")
    with pytest.raises(InvalidArtifactError, match=r"hmc import DIR"):
        read_layout(tmp_path / "opus")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("3", "a head layout is"),
        ('{"cross": [[0]]}', "exactly the keys"),
        ('{"encoder_self": [["a"]], "decoder_self": [[]], "cross": [[]]}', "whole numbers from 0"),
        (
            '{"encoder_self": [[true]], "decoder_self": [[]], "cross": [[]]}',
            r"0: \[true\] must be a list",
        ),
        ('{"encoder_self": 3, "decoder_self": [[]], "cross": [[]]}', "a head layout is"),
        ('{"encoder_self": [[1, 1]], "decoder_self": [[]], "cross": [[]]}', "ascending distinct"),
    ],
)
def test_broken_layout_files(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "layout.json").write_text(text)
    with pytest.raises(InvalidRequestError, match=message):
        read_layout(tmp_path / "layout.json")
    with pytest.raises(InvalidRequestError, match="does not exist"):
        read_layout(tmp_path / "none.json")
