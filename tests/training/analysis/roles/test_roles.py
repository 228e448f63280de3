"""Roles: planted heads are found, and only they; the measures behind the roles by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.training.analysis.planted import PLANTED, Planted, write_planted

from hmc.artifact import Head, InvalidRequestError
from hmc.training.analysis.common.records import Role, RolesData
from hmc.training.analysis.common.result import Result
from hmc.training.analysis.common.subject import Subject, load_subject, read_text
from hmc.training.analysis.common.views import TokenPair, View
from hmc.training.analysis.figures.roles import ROLE_COLOURS, draw_roles
from hmc.training.analysis.roles.conllu import Tree, Word, read_trees
from hmc.training.analysis.roles.rare_words import RareWordCounts, token_counts
from hmc.training.analysis.roles.roles import Frequencies, PositionCounts, Trees, analyse, role_label, summary
from hmc.training.analysis.roles.syntactic import TASKS, Accuracy, SyntaxCounts, Units, syntax


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    return write_planted(tmp_path_factory.mktemp("planted"))


@pytest.fixture(scope="module")
def planted_subject(planted: Planted) -> Subject:
    return load_subject(planted.checkpoint, "cpu")


@pytest.fixture(scope="module")
def result(planted: Planted, planted_subject: Subject) -> Result[RolesData]:
    counts = token_counts(str(planted.training), planted_subject.vocabulary, ("en", "de"))
    return analyse(
        planted_subject,
        read_text(planted.text, ("en", "de")),
        Trees.named("dev", read_trees(planted.trees)),
        Frequencies(counts, str(planted.training), frequent=5),
        forced=True,
    )


def test_planted_heads_are_found_and_only_they(result: Result[RolesData]) -> None:
    found = {
        Head(row.kind, row.layer, row.index): [role.model_dump() for role in row.roles] for row in result.data.heads
    }
    assert len(found) == 24
    assert {head: roles for head, roles in found.items() if roles} == PLANTED


def test_numbers_behind_the_planted_roles(result: Result[RolesData]) -> None:
    rows = {(row.kind, row.layer, row.index): row for row in result.data.heads}
    assert rows["encoder_self", 0, 0].position["share"] == 1.0
    assert rows["encoder_self", 0, 0].position["share_of_all"] < 1.0  # the first token has none before it
    assert (rows["encoder_self", 0, 3].rare_words or {})["rarest"] == 1.0
    [subject_to_verb] = [
        task
        for task in rows["encoder_self", 0, 5].syntax or []
        if (task["relation"], task["direction"]) == ("nsubj", "from_dependent")
    ]
    assert subject_to_verb["accuracy"] == 1.0
    assert subject_to_verb["cases"] == 60
    assert float(subject_to_verb["baseline"]) < 0.6
    assert result.data.treebank is not None
    assert result.data.treebank["sentences"] == 60
    assert sum(result.data.treebank["distances"]["nsubj"].values()) == pytest.approx(1)
    assert rows["cross", 0, 0].syntax is None
    assert rows["decoder_self", 0, 0].rare_words is None


def test_summary_names_the_heads(result: Result[RolesData]) -> None:
    shown = summary(result)
    assert {row[0]: row[1] for row in shown.rows} == {
        "encoder_self.0.0": "-1", "encoder_self.0.2": "+1", "encoder_self.0.3": "rare", "encoder_self.0.5": "s→v",
        "decoder_self.0.1": "-1",
    }  # fmt: skip
    assert "5 of 24 heads have a role: 3 positional, 1 syntactic, 1 rare words" in shown.notes


def test_without_trees_and_frequencies_only_positions_are_looked_for(
    planted: Planted, planted_subject: Subject
) -> None:
    found = analyse(planted_subject, read_text(planted.text, ("en", "de"), 20))
    assert found.data.looked_for == ["positional"]
    assert {role.role for row in found.data.heads for role in row.roles} == {"positional"}
    assert "not looked for: syntactic, rare words (needs --trees, --frequencies)" in summary(found).notes


def test_the_map_shows_roles_and_closed_heads(result: Result[RolesData], tmp_path: Path) -> None:
    [svg, png] = draw_roles(result, tmp_path)
    assert png.stat().st_size > 1000
    drawn = svg.read_text(encoding="utf-8").lower()
    cells = {role: drawn.count(f"fill: {colour.lower()}") for role, colour in ROLE_COLOURS.items()}
    assert cells == {"positional": 3 + 1, "syntactic": 1 + 1, "rare words": 1 + 1}  # and one each in the legend
    everywhere = drawn.count("fill: url(#h")
    changes = {
        "heads": [row for row in result.data.heads if row.index != 2],
        "layout": {kind: [[0, 1, 3, 4, 5] for _ in rows] for kind, rows in result.data.layout.items()},
    }
    data = result.data.model_copy(update=changes)
    [svg, _] = draw_roles(result.model_copy(update={"data": data}), tmp_path)
    drawn = svg.read_text(encoding="utf-8").lower()
    assert drawn.count("fill: url(#h") == everywhere + 4  # head 2 of four attentions
    assert drawn.count(f"fill: {ROLE_COLOURS['positional'].lower()}") == cells["positional"] - 1


def view(matrices: list[list[list[float]]], kind: str = "encoder_self", causal: bool = False) -> View:
    """One sentence; a matrix a head; every position is a token."""
    weights = torch.tensor([matrices])
    visible = torch.ones(1, *weights.shape[2:], dtype=torch.bool)
    return View(kind, 0, weights, visible.tril() if causal else visible, [0])  # type: ignore[arg-type]


def test_positions_count_where_the_offset_exists() -> None:
    counts = PositionCounts()
    #              looks left, at the edge at itself           always at the first token
    counts.add(view([[[1, 0, 0], [1, 0, 0], [0, 1, 0]], [[1, 0, 0], [1, 0, 0], [1, 0, 0]]]))
    left, first = counts.best()["encoder_self", 0]
    assert (left.offset, left.share) == (-1, 1.0)
    assert left.share_of_all == pytest.approx(2 / 3)
    assert left.positional
    assert (first.offset, first.share) == (-1, 0.5)
    assert not first.positional


def test_a_query_without_a_choice_does_not_count() -> None:
    counts = PositionCounts()
    counts.add(view([[[1, 0, 0], [0, 1, 0], [0, 0.4, 0.6]]], "decoder_self", causal=True))
    [position] = counts.best()["decoder_self", 0]
    assert (position.offset, position.share_of_all) == (0, 1.0)


def test_rare_tokens_by_hand() -> None:
    counts = np.array([100, 90, 80, 5, 3, 3])
    # rarest 4 (and its equal 5 in the second sentence); the third sentence's rarest is frequent
    pairs = [TokenPair([0, 3, 4, 0, 99], [0]), TokenPair([4, 5, 1, 99], [0]), TokenPair([0, 1, 2, 99], [0])]
    counter = RareWordCounts(pairs, counts, frequent=3)
    assert counter.sentences == 2
    at_fourth, at_second = torch.zeros(4, 4), torch.zeros(4, 4)
    at_fourth[:, 2], at_second[:, 1] = 1.0, 1.0
    weights = torch.stack([at_fourth, at_second])[None].repeat(3, 1, 1, 1)
    visible = torch.ones(3, 4, 4, dtype=torch.bool)
    visible[1:, 3, :] = visible[1:, :, 3] = False
    counter.add(View("encoder_self", 0, weights, visible, [0, 1, 2]))
    counter.add(View("cross", 0, weights, visible, [0, 1, 2]))
    found = counter.shares()
    assert list(found) == [("encoder_self", 0)]
    third, second = found["encoder_self", 0]
    # first sentence: 4 queries, rarest at 2, second rarest at 1; second: 3 queries, both rarest at 0 and 1
    assert (third.queries, third.sentences) == (7, 2)
    assert [third.rarest, third.two_rarest] == pytest.approx([4 / 7, 4 / 7])
    assert [second.rarest, second.two_rarest] == pytest.approx([3 / 7, 1.0])
    assert third.chance == second.chance == pytest.approx((4 * 2 / 4 + 3 * 2 / 3) / 7)
    assert second.rare
    assert not third.rare  # no better than chance in sentences this short


def test_a_token_that_names_a_language_is_not_rare() -> None:
    counts = np.array([100, 90, 3, 5, 0])
    counter = RareWordCounts([TokenPair([4, 0, 2, 3, 99], [0], (1, 0))], counts, frequent=1)
    weights, visible = torch.zeros(1, 1, 5, 5), torch.zeros(1, 5, 5, dtype=torch.bool)
    weights[..., 2], visible[:, 1:4, 1:4] = 1.0, True
    counter.add(View("encoder_self", 0, weights, visible, [0]))
    [[found]] = counter.shares().values()
    assert (found.rarest, found.two_rarest, found.queries) == (1.0, 1.0, 3)
    assert found.chance == pytest.approx(2 / 3)


def test_the_number_of_frequent_tokens_is_not_negative() -> None:
    with pytest.raises(InvalidRequestError, match="must be 0 or more, not -1"):
        Frequencies(np.array([1]), "text", frequent=-1)


def test_frequencies_need_text(tmp_path: Path, subject: Subject) -> None:
    (tmp_path / "empty.en").write_text("\n")
    with pytest.raises(InvalidRequestError, match="holds no text"):
        token_counts(str(tmp_path / "empty.en"), subject.vocabulary, ("en", "de"))


def test_frequencies_of_one_file_and_of_a_corpus_are_the_same(corpus: str, subject: Subject) -> None:
    one = token_counts(corpus.split(maxsplit=1)[0], subject.vocabulary, ("en", "de"))
    assert one.sum() > 0
    assert one[subject.vocabulary.eos_id] == 0
    assert (one == token_counts(corpus, subject.vocabulary, ("en", "de"))).all()


def test_relations_count_a_word_once_and_skip_shared_units() -> None:
    # b has the dependents a and c (both amod); d is glued to b's unit
    words = (
        Word("a", 1, "amod", 0, 1),
        Word("b", -1, "root", 2, 3),
        Word("c", 1, "amod", 4, 5),
        Word("d", 1, "obj", 2, 3),
    )
    counts = SyntaxCounts()
    relations = counts.sentence(Tree("a b c", words), Units([1, 2, 3], [0, 1, 2], [0, 1, 2, 1], 3))
    from_head = TASKS.index(("amod", "from_head"))
    assert relations[from_head].nonzero().tolist() == [[1, 0], [1, 2]]
    assert not relations[TASKS.index(("obj", "from_head"))].any()
    counts.attention(("encoder_self", 0), torch.tensor([[[0, 1, 0], [0, 0, 1], [0, 1, 0.0]]]), relations)
    [head] = counts.accuracies()["encoder_self", 0]
    assert head[from_head] == Accuracy("amod", "from_head", accuracy=1.0, baseline=1.0, offset=-1, cases=1)
    to_head = head[TASKS.index(("amod", "from_dependent"))]
    assert (to_head.accuracy, to_head.baseline, to_head.cases) == (1.0, 0.5, 2)
    assert not to_head.syntactic  # too few cases
    assert counts.joined == 2


@pytest.mark.parametrize(("accuracy", "syntactic"), [(0.61, True), (0.59, False)])
def test_the_margin_above_the_baseline(accuracy: float, syntactic: bool) -> None:
    assert Accuracy("obj", "from_head", accuracy, baseline=0.5, offset=2, cases=50).syntactic is syntactic


def test_labels() -> None:
    assert role_label(Role(role="syntactic", relation="advmod", direction="from_dependent")) == "adv→v"
    assert role_label(Role(role="positional", offset=0)) == "0"


def test_a_treebank_that_says_nothing_is_refused(tmp_path: Path, planted: Planted, planted_subject: Subject) -> None:
    with pytest.raises(InvalidRequestError, match="treebank e has no sentence"):
        Trees.named("e", [])
    long = "\n".join(f"{n}\tdog\t_\t_\t_\t_\t{n - 1}\tdep\t_\t_" for n in range(1, 400))
    (tmp_path / "long.conllu").write_text(long + "\n")
    with pytest.raises(InvalidRequestError, match="none of the 1 sentences of the treebank can be used"):
        syntax(planted_subject, read_trees(tmp_path / "long.conllu"))
