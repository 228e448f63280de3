"""Ablation and all-but-one equal masking by hand, one layout at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.tiny import tiny_checkpoint_at
from tests.training.analysis.helpers import LAYOUT, LOSS, loss_of, without

from hmc.artifact import Head, HeadLayout, InvalidRequestError
from hmc.training import evaluate, mask_to_layout, open_gates
from hmc.training.analysis.common.measure import Settings
from hmc.training.analysis.common.result import parse_heads, table_of
from hmc.training.analysis.common.subject import Subject, Text, load_subject
from hmc.training.analysis.masking import ablate, all_but_one
from hmc.training.analysis.masking.ranking import RankBy


def test_ablation_equals_masking_one_head_at_a_time(subject: Subject, text: Text) -> None:
    result = ablate.analyse(subject, text, LOSS)
    full = loss_of(subject, text, LAYOUT)
    assert result.data.full.loss.value == pytest.approx(full, rel=1e-5)
    assert [row.head for row in result.data.heads] == list(LAYOUT.heads())
    for row in result.data.heads:
        alone = loss_of(subject, text, without([row.head]))
        delta = row.delta_loss
        assert delta.value == pytest.approx(alone - full, abs=1e-5)
        assert delta.low <= delta.value <= delta.high
    assert max(abs(row.delta_loss.value) for row in result.data.heads) > 1e-3


def test_ablation_bleu_is_that_of_evaluate(demo: Subject, demo_text: Text) -> None:
    head = Head("cross", 2, 8)
    result = ablate.analyse(demo, demo_text, Settings(resamples=100), [head])
    full = evaluate(demo.model, demo.vocabulary, demo_text.pairs, beam=1)
    mask_to_layout(demo.model, demo.layout, HeadLayout.from_heads([h for h in demo.layout.heads() if h != head], 3, 3))
    masked = evaluate(demo.model, demo.vocabulary, demo_text.pairs, beam=1)
    open_gates(demo.model)
    assert full.bleu > 20
    assert result.data.full.metric("bleu").value == pytest.approx(full.bleu, abs=1e-6)
    [row] = result.data.heads
    assert row.delta_bleu is not None
    assert row.delta_bleu.value == pytest.approx(masked.bleu - full.bleu, abs=1e-6)
    assert result.settings["bleu_signature"] == full.bleu_signature
    table = table_of(result.data, result.data.heads, lambda row: row.delta_bleu.value if row.delta_bleu else 0.0)
    assert np.isnan(np.array(table["encoder_self"], float)).all(), "open heads that were not asked for"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "encoder_self.0.2",
            r"head encoder_self\.0\.2 is not open .*open heads of that layer: encoder_self\.0\.0, .*\.1, .*\.3",
        ),
        ("decoder_self.1.0", "open heads of that layer: none"),
        ("cross.0", "write KIND.LAYER.INDEX"),
        ("self.0.1", "kinds: encoder_self, decoder_self, cross"),
    ],
)
def test_a_head_that_is_not_open_cannot_be_ablated(name: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        parse_heads([name], LAYOUT)
    assert parse_heads(["cross.1.3"], LAYOUT) == [Head("cross", 1, 3)]


def test_all_but_one_keeps_the_head_of_least_loss(subject: Subject, text: Text) -> None:
    result = all_but_one.analyse(subject, text, LOSS)
    layers = result.data.layers
    assert [(layer.kind, layer.layer) for layer in layers] == [
        ("encoder_self", 0),
        ("decoder_self", 0),
        ("cross", 0),
        ("cross", 1),
    ], "layers with one head or none have nothing to mask"
    full = loss_of(subject, text, LAYOUT)
    for layer in layers:
        kind, number = layer.kind, layer.layer
        for row in layer.heads:
            others = [Head(kind, number, i) for i in LAYOUT[kind][number] if i != row.index]
            assert row.delta_loss.value == pytest.approx(loss_of(subject, text, without(others)) - full, abs=1e-5)
        least = min(layer.heads, key=lambda row: row.delta_loss.value)
        assert layer.best == least.index
        assert layer.delta_loss.value == pytest.approx(least.delta_loss.value, abs=1e-6)


def test_settings_out_of_range() -> None:
    for changes, message in (
        ({"beam": 0}, "beam 0: choose 1"),
        ({"resamples": 5}, "resamples 5: choose 100"),
        ({"seed": -1}, "seed -1: choose 1 to 4294967295"),
        ({"seed": 2**32}, "seed 4294967296: choose 1 to 4294967295"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            Settings(**changes)  # type: ignore[arg-type]


def test_a_checkpoint_without_heads_has_nothing_to_mask(tmp_path: Path, text: Text) -> None:
    none = HeadLayout.from_heads([], 2, 2)
    tiny_checkpoint_at(tmp_path / "c", layout=none, gates=False)
    bare = load_subject(tmp_path / "c", "cpu")
    with pytest.raises(InvalidRequestError, match="this checkpoint has no open heads"):
        ablate.analyse(bare, text, LOSS)
    with pytest.raises(InvalidRequestError, match="no layer of this checkpoint has two or more open heads"):
        all_but_one.analyse(bare, text, LOSS)
    with pytest.raises(InvalidRequestError, match="no attention heads left"):
        RankBy().rank(bare, text)
