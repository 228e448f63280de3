"""The forms of HeadMask: heads of each attention, other importances, a mask for each part, rescaling, a late start, the
log of masks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.updates import interrupted
from tests.training.headmask.test_headmask import FABRIC, LAYOUT, headmask, masked, recipe
from tests.training.runs.test_updater import batches

from hmc.artifact import HeadLayout, InvalidRequestError
from hmc.artifact.model.heads import KINDS
from hmc.artifact.model.importance import Importance
from hmc.training import FixedMask, HeadMaskSpec, OpenGate, TrainingRun, train
from hmc.training.headmask.mask import FILE, STREAM, MaskLog
from hmc.training.model.importance import importance_of, importance_sums


def test_spellings() -> None:
    plain = HeadMaskSpec("important", 18, False)
    assert HeadMaskSpec.parse("important:18") == plain
    assert HeadMaskSpec.parse("important:12.5%@dec,cross") == HeadMaskSpec(
        "important", 12.5, True, ("decoder_self", "cross")
    )
    assert HeadMaskSpec.parse(
        "important:2/attention@enc,cross,token,layer,signed,part,rescaled,after=40"
    ) == HeadMaskSpec(
        "important", 2, False, ("encoder_self", "cross"), True, Importance("token", "layer", "signed"), True, True, 40
    )
    assert HeadMaskSpec.parse("random:1/attention,rescaled") == HeadMaskSpec(
        "random", 1, False, per_attention=True, rescaled=True
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("important:18,sign", "'sign' is unknown; choose among sentence, token, batch, layer, signed, part"),
        ("important:18,cross", "name kinds with @"),
        ("important:18@enc,sign", "choose encoder_self, decoder_self, cross"),
        ("important:18,token,batch", "not several"),
        ("important:18,", "'' is unknown"),
        ("important:1.5/attention", "no whole number"),
        ("random:18,signed", "signed is for `important`"),
        ("random:18,after=soon", "'after=soon' is unknown"),
    ],
)
def test_unreadable_forms(text: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        HeadMaskSpec.parse(text)


def test_masks_of_a_seed_are_those_of_earlier_versions() -> None:
    """A part of 0 in the seed draws what a seed without parts drew."""
    method = headmask("random:7", seed=3)
    [mask] = method.masks(FABRIC, 11, [])
    drawn = np.random.default_rng([3, 11, STREAM]).choice(np.arange(24), 7, replace=False)
    assert sorted(drawn) == (mask == 0).nonzero()[:, 0].tolist()


@pytest.mark.parametrize("text", ["random:1/attention", "important:1/attention", "important:2/attention@cross,signed"])
@pytest.mark.parametrize("layout", [None, LAYOUT])
def test_every_attention_in_scope_loses_as_many_heads_and_keeps_one(text: str, layout: HeadLayout | None) -> None:
    method = headmask(text, layout)
    layout = layout or method.model.arch.full_layout()
    [mask] = method.masks(FABRIC, 1, batches())
    closed = masked(mask, layout)
    assert len(closed) == method.number > 0
    for kind in KINDS:
        for layer, row in enumerate(layout[kind]):
            number = sum(head.kind == kind and head.layer == layer for head in closed)
            wanted = min(int(method.spec.amount), max(0, len(row) - 1)) if kind in method.spec.kinds else 0
            assert number == wanted, (kind, layer)


def test_more_heads_than_an_attention_has_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="up to 4 open heads, of which one has to stay open; choose 1 to 3"):
        headmask("random:4/attention")


@pytest.mark.parametrize("words", ["sentence", "token", "batch", "layer", "signed", "token,layer,signed"])
def test_heads_are_ranked_by_the_importance_that_is_named(words: str) -> None:
    method = headmask(f"important:7,{words}")
    how = Importance.parse(words.split(","), "")
    sums = importance_sums(method.model, batches(), how, 0.1)
    expected = importance_of(sums, how, method.widths).topk(7).indices
    [mask] = method.masks(FABRIC, 1, batches())
    assert set((mask == 0).nonzero()[:, 0].tolist()) == set(expected.tolist())


def test_importances_rank_heads_differently() -> None:
    """Otherwise the test above could not tell them apart."""
    found = []
    for words in ("sentence", "token", "batch", "layer", "signed"):
        [mask] = headmask(f"important:7,{words}").masks(FABRIC, 1, batches())
        found.append(frozenset((mask == 0).nonzero()[:, 0].tolist()))
    assert len(set(found)) == 5


@pytest.mark.parametrize("method", ["random", "important"])
def test_each_part_has_its_own_mask_during_its_forward_pass(method: str) -> None:
    found = headmask(f"{method}:7,part")
    masks = found.masks(FABRIC, 1, batches())
    assert masks.shape == (2, 24)
    assert not torch.equal(masks[0], masks[1])
    if method == "important":
        for part, batch in enumerate(batches()):
            assert torch.equal(masks[part], headmask("important:7").masks(FABRIC, 1, [batch])[0])
    with found.applied(FABRIC, 1, batches()) as put:
        for part in (0, 1):
            put(part)
            gates = [attention.gate for *_, attention in found.model.attentions()]
            assert torch.equal(torch.cat([gate.mask for gate in gates if isinstance(gate, FixedMask)]), masks[part])


def test_open_heads_are_rescaled_by_heads_over_open_heads() -> None:
    method = headmask("random:7,rescaled")
    with method.applied(FABRIC, 5, []):
        for *_, attention in method.model.attentions():
            gate = attention.gate
            assert isinstance(gate, FixedMask)
            kept = int((gate.mask > 0).sum())
            assert gate.mask.sum() == pytest.approx(4 if kept else 0)
            assert all(value == pytest.approx(4 / kept) for value in gate.mask.tolist() if value)


def test_nothing_is_masked_before_its_time() -> None:
    method = headmask("important:7,after=3")
    for step, gate in ((3, OpenGate), (4, FixedMask)):
        with method.applied(FABRIC, step, batches()):
            assert {type(attention.gate) for *_, attention in method.model.attentions()} == {gate}
    assert method.log.state()["updates"] == 1


def test_the_log_counts_masks_and_those_of_the_update_before() -> None:
    layout = LAYOUT
    log, rows = MaskLog(layout), torch.ones(3, layout.total)
    for row, closed in zip(rows, ([0, 1, 2, 3], [2, 3, 4, 5], [2, 3, 4, 6]), strict=True):
        row[closed] = 0
        state = json.loads(json.dumps(log.state()))  # as if the run was interrupted
        log = MaskLog(layout)
        log.restore(state)
        log.add(row[None])
    assert log.line() == {"masked again": pytest.approx((2 / 4 + 3 / 4) / 2)}
    assert log.line() == {}
    assert log.state()["masked"][:7] == [1, 1, 3, 3, 2, 1, 1]
    log.add(torch.stack([rows[0], rows[1]]))
    assert log.state()["masked"][:7] == [1.5, 1.5, 4, 4, 2.5, 1.5, 1]


def test_a_resumed_run_counts_on(tmp_path: Path) -> None:
    settings = recipe(tmp_path, headmask="random:5,part,after=1")
    settings = settings.model_copy(update={"run": settings.run.model_copy(update={"eval_every": 3})})
    train(settings, tmp_path / "whole")
    with interrupted(5):
        train(settings, tmp_path / "resumed")
    train(settings, tmp_path / "resumed")
    whole, resumed = (json.loads((tmp_path / name / FILE).read_text()) for name in ("whole", "resumed"))
    assert whole == resumed
    assert [(entry["step"], entry["updates"]) for entry in whole["history"]] == [(3, 2), (6, 5), (8, 7)]
    assert all(sum(entry["masked"]) == pytest.approx(5 * entry["updates"]) for entry in whole["history"])
    lines = [json.loads(line) for line in (tmp_path / "whole" / "log.jsonl").read_text().splitlines()]
    assert any("masked again" in line for line in lines)
    assert TrainingRun(settings, tmp_path / "whole").finished
