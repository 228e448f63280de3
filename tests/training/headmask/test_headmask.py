"""HeadMask: masks of both algorithms, one mask for a whole update, exact resume. Its forms: `test_forms.py`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.files import write_pair
from tests.support.recipes import small_recipe
from tests.support.updates import interrupted
from tests.tiny import SENTENCES, random_layout, random_tensors, tiny_architecture
from tests.training.runs.test_updater import batches
from torch import Tensor

from hmc.artifact import Head, HeadLayout, InvalidRequestError, load_checkpoint
from hmc.training import (
    HeadMask,
    HeadMaskSpec,
    OpenGate,
    Recipe,
    Transformer,
    build_transformer,
    load_recipe,
    sentence_importance,
    train,
)
from hmc.training.model.checkpoints import import_tensors
from hmc.training.runs.optimizer import make_optimizer
from hmc.training.runs.processes import make_fabric
from hmc.training.runs.recipe import RunSection, TrainSection
from hmc.training.runs.updater import Updater

LAYOUT = random_layout(tiny_architecture(), 3)
CHI_SQUARE_999 = {23: 49.73}
"""Degrees of freedom → the value that χ² exceeds with probability 0.001."""


def tiny_model(layout: HeadLayout | None = None) -> Transformer:
    arch = tiny_architecture()
    model = build_transformer(arch, layout)
    import_tensors(model, random_tensors(arch, layout or arch.full_layout()))
    return model


def headmask(text: str, layout: HeadLayout | None = None, seed: int = 1) -> HeadMask:
    model = tiny_model(layout)
    return HeadMask(model, layout or model.arch.full_layout(), HeadMaskSpec.parse(text), seed, 0.1)


FABRIC = make_fabric(RunSection(device="cpu"))


def masked(mask: Tensor, layout: HeadLayout) -> set[Head]:
    """Heads that `mask` `[total]` closes."""
    assert set(mask.tolist()) <= {0.0, 1.0}
    return {head for head, value in zip(layout.heads(), mask.tolist(), strict=True) if value == 0}


def random_masks(text: str, steps: int, layout: HeadLayout, seed: int = 1) -> list[set[Head]]:
    method, found = headmask(text, layout, seed), []
    for step in range(1, steps + 1):
        [mask] = method.masks(FABRIC, step, [])
        found.append(masked(mask, layout))
    return found


def test_random_n_masks_n_heads_uniformly() -> None:
    """χ² over heads; drawing without replacement makes counts vary less, by (H - N) / (H - 1)."""
    layout, drawn, steps = tiny_architecture().full_layout(), 5, 4000
    masks = random_masks(f"random:{drawn}", steps, layout)
    assert {len(mask) for mask in masks} == {drawn}
    counts = Counter(head for mask in masks for head in mask)
    total = layout.total
    expected = steps * drawn / total
    statistic = (
        sum((counts[head] - expected) ** 2 / expected for head in layout.heads()) * (total - 1) / (total - drawn)
    )
    assert statistic < CHI_SQUARE_999[total - 1]
    assert len({frozenset(mask) for mask in masks}) > 0.9 * steps, "hardly any sample comes twice"


def test_random_masks_depend_on_seed_and_step_alone() -> None:
    layout = tiny_architecture().full_layout()
    first, again = (random_masks("random:6", 20, layout) for _ in range(2))
    assert first == again
    assert first != random_masks("random:6", 20, layout, seed=2)


@pytest.mark.parametrize("method", ["random", "important"])
def test_the_scope_and_the_layout_bound_the_masks(method: str) -> None:
    """In a slim model, removed heads cannot be drawn, and shares count the remaining heads."""
    spec = HeadMaskSpec.parse(f"{method}:50%@dec,cross")
    in_scope = [head for head in LAYOUT.heads() if head.kind != "encoder_self"]
    assert spec.number(LAYOUT) == int(len(in_scope) / 2 + 0.5)
    found = headmask(f"{method}:50%@dec,cross", LAYOUT)
    [mask] = found.masks(FABRIC, 1, batches())
    closed = masked(mask, LAYOUT)
    assert len(closed) == spec.number(LAYOUT)
    assert closed <= set(in_scope)


@pytest.mark.parametrize("number", [1, 7, 15])
def test_impt_n_masks_exactly_the_top_n_of_the_whole_update(number: int) -> None:
    layout = tiny_architecture().full_layout()
    method = headmask(f"important:{number}")
    rows = torch.cat([sentence_importance(method.model, batch, 0.1) for batch in batches()])
    ranked = [head for _, head in sorted(zip(rows.mean(0).tolist(), layout.heads(), strict=True), reverse=True)]
    [mask] = method.masks(FABRIC, 1, batches())
    assert masked(mask, layout) == set(ranked[:number])


def test_the_last_batch_alone_would_mask_other_heads() -> None:
    """Otherwise the test above could not tell a whole update from its last batch."""
    method = headmask("important:7")
    by_batch = [sentence_importance(method.model, batch, 0.1).sum(0) for batch in batches()]
    tops = [set(values.topk(7).indices.tolist()) for values in (by_batch[0] + by_batch[1], by_batch[0], by_batch[1])]
    assert tops[0] != tops[1]
    assert tops[0] != tops[2]


def test_importance_is_much_the_same_in_mixed_precision() -> None:
    method = headmask("important:7")
    exact = sum(sentence_importance(method.model, batch, 0.1).sum(0) for batch in batches())
    assert isinstance(exact, Tensor)
    mixed_fabric = make_fabric(RunSection(device="cpu", precision="bf16-mixed"))
    with mixed_fabric.autocast():
        mixed = sum(sentence_importance(method.model, batch, 0.1).sum(0) for batch in batches())
    assert isinstance(mixed, Tensor)
    assert mixed.dtype == torch.float32
    assert not torch.equal(mixed, exact), "autocast was on"
    torch.testing.assert_close(mixed, exact, rtol=0.1, atol=0.02 * float(exact.max()))
    [mask] = method.masks(mixed_fabric, 1, batches())
    assert int((mask == 0).sum()) == 7
    assert exact[mask == 0].min() > 0.8 * exact.sort(descending=True).values[6]


@pytest.mark.parametrize("text", ["random:7", "important:7"])
def test_masked_heads_get_no_gradient_and_open_again(text: str) -> None:
    """One mask for all accumulated batches: a masked head's columns of W_O have no gradient from any of them."""
    method = headmask(text)
    model, section = method.model, TrainSection(accumulate=2, dropout=0.0, warmup_steps=1)
    optimizer = make_optimizer([{"params": list(model.parameters()), "name": "model"}], section)
    updater = Updater(FABRIC, model, optimizer, iter(batches() * 2), section, method.applied)
    updater.update(1)
    silent = 0
    for *_, attention in model.attentions():
        assert attention.out_weight.grad is not None
        by_head = attention.out_weight.grad.view(32, attention.heads, attention.head_dim).abs().sum((0, 2))
        silent += int((by_head == 0).sum())
        assert type(attention.gate) is OpenGate
    assert silent == 7


def test_gates_come_back_when_an_update_fails() -> None:
    method = headmask("random:7")
    with pytest.raises(RuntimeError), method.applied(FABRIC, 1, []):
        raise RuntimeError
    assert all(type(attention.gate) is OpenGate for *_, attention in method.model.attentions())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("random", "write METHOD:AMOUNT"),
        ("best:18", "write METHOD:AMOUNT"),
        ("random:-3", "write METHOD:AMOUNT"),
        ("random:2.5", "no whole number"),
        ("random:3@encoder", "choose encoder_self, decoder_self, cross"),
    ],
)
def test_unreadable_settings_are_refused_by_the_recipe(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "r.toml").write_text(f'[data]\ntrain = ["a b"]\ndev = "a b"\n[train]\nheadmask = "{text}"\n')
    with pytest.raises(InvalidRequestError, match=message):
        load_recipe(tmp_path / "r.toml")


@pytest.mark.parametrize("text", ["random:0", "important:24", "random:1%", "random:8@cross"])
def test_numbers_that_leave_nothing_to_mask_or_to_train(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="choose 1 to"):
        headmask(text)


def recipe(folder: Path, **settings: object) -> Recipe:
    """A short run whose target is the source in capitals."""
    corpus = write_pair(folder, SENTENCES * 2)
    basic = {"steps": 8, "dropout": 0.2, "accumulate": 2}
    run = {"save_every": 3, "eval_every": 8, "eval_sentences": 2, "log_every": 2}
    return small_recipe(corpus, train=basic | settings, run=run)


@pytest.mark.parametrize("text", ["random:25%", "important:5"])
def test_an_interrupted_run_ends_as_an_uninterrupted_one(text: str, tmp_path: Path) -> None:
    settings = recipe(tmp_path, headmask=text)
    whole = load_checkpoint(train(settings, tmp_path / "whole"))
    with interrupted(5):
        train(settings, tmp_path / "resumed")
    resumed = load_checkpoint(train(settings, tmp_path / "resumed"))
    assert all(np.array_equal(resumed.tensors[n], whole.tensors[n]) for n in whole.tensors)
    plain = load_checkpoint(train(recipe(tmp_path), tmp_path / "plain"))
    assert not all(np.array_equal(plain.tensors[n], whole.tensors[n]) for n in whole.tensors)


@pytest.mark.parametrize("method", ["random", "important"])
def test_a_decoder_sees_its_source_in_every_update(method: str) -> None:
    layout = tiny_architecture().full_layout()
    for number in (20, 23):
        found = headmask(f"{method}:{number}")
        if method == "important":  # all of cross-attention would be masked first
            for kind, _, attention in found.model.attentions():
                if kind != "cross":
                    attention.out_weight.data.zero_()
        for step in range(1, 41 if method == "random" else 2):
            [mask] = found.masks(FABRIC, step, batches())
            closed = masked(mask, layout)
            assert len(closed) == number
            assert any(head.kind == "cross" for head in set(layout.heads()) - closed)
