"""On a GPU: no update waits for it, in training, HeadMask, pruning and nested fine-tuning; compiled losses agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from tests.support.files import write_pair
from tests.tiny import SENTENCES, tiny_architecture, tiny_tokenizer
from tests.training.runs.test_updater import batches

from hmc.artifact import HeadBudget, HeadLayout
from hmc.artifact.model.heads import KINDS
from hmc.training import (
    HeadGates,
    HeadMask,
    HeadMaskSpec,
    NeuronGates,
    PruneSettings,
    Transformer,
    Vocabulary,
    build_transformer,
    mask_to_layout,
)
from hmc.training.data.batches import BatchStream
from hmc.training.data.corpus import TokenCorpus
from hmc.training.pruning.schedule import ClosingSchedule
from hmc.training.pruning.targets import HeadTarget, NeuronTarget
from hmc.training.runs.optimizer import make_optimizer
from hmc.training.runs.processes import make_fabric
from hmc.training.runs.recipe import RunSection, TrainSection
from hmc.training.runs.updater import Masking, Updater

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
Precision = Literal["32-true", "bf16-mixed"]
PRECISIONS: tuple[Precision, ...] = ("32-true", "bf16-mixed")


@contextmanager
def waiting_is_an_error() -> Iterator[None]:
    """Any operation that makes the host wait for the GPU raises."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def make_model() -> Transformer:
    torch.manual_seed(0)
    return build_transformer(tiny_architecture(), dropout=0.1)


def make_updater(
    model: Transformer,
    precision: Precision,
    gates: Callable[[], list[torch.Tensor]] = list,
    masking: Masking | None = None,
    *,
    compiled: bool = False,
) -> Updater:
    """gates: called when the model is on the GPU; returns log α."""
    fabric = make_fabric(RunSection(device="cuda", precision=precision, compile=compiled))
    model.to(fabric.device)
    section = TrainSection(accumulate=2, warmup_steps=1)
    weights = list(model.parameters())
    groups: list[dict[str, Any]] = [{"params": weights, "name": "weights"}, {"params": gates(), "name": "gates"}]
    optimizer = make_optimizer(groups, section)
    pinned = [batch.pinned() for batch in batches()]
    return Updater(fabric, model, optimizer, cycle(pinned), section, masking, compiled=compiled)


def test_waiting_is_seen() -> None:
    """The check can fail: reading a number is an error inside of it."""
    value = torch.ones((), device="cuda")
    with waiting_is_an_error(), pytest.raises(RuntimeError, match="synchroniz"):
        value.item()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("headmask", [None, "random:7", "important:7"])
def test_training(precision: Precision, headmask: str | None) -> None:
    model = make_model()
    spec = HeadMaskSpec.parse(headmask) if headmask else None
    masking = HeadMask(model, model.arch.full_layout(), spec, 1, 0.1).applied if spec else None
    updater = make_updater(model, precision, masking=masking)
    updater.update(1)  # Adam makes its moments, and libraries their workspaces
    with waiting_is_an_error():
        updates = [updater.update(step) for step in range(2, 6)]
    assert all(update.loss > 0 for update in updates)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_closing_heads_and_neurons(precision: Precision) -> None:
    """In no phase: while the budget falls, while gates are pressed to decide, and while they move to their ends."""
    model, steps = make_model(), 20
    heads: list[HeadGates] = []
    neurons: list[NeuronGates] = []

    def gates() -> list[torch.Tensor]:
        heads.append(HeadGates(model, model.arch.full_layout(), 2.0))
        neurons.append(NeuronGates(model, 2.0))
        return [*heads[0].parameters(), *neurons[0].parameters()]

    updater, settings = make_updater(model, precision, gates), PruneSettings(close_steps=steps)
    targets = [HeadTarget(heads[0], HeadBudget(((KINDS, 9),)), settings), NeuronTarget(neurons[0], 50, settings)]
    closing = ClosingSchedule(targets, steps, settings)
    updater.update(1)
    with waiting_is_an_error():
        for step in range(1, steps + 1):
            updater.update(step, partial(closing.penalty, step))
            closing.end_update(step)
    assert heads[0].unsettled() == {}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_nested_masks(precision: Precision) -> None:
    """Every update masks the model to another layout."""
    model = make_model()
    updater, every = make_updater(model, precision), model.arch.full_layout()
    layouts = [HeadLayout.from_heads(list(every.heads())[:number], 2, 2) for number in (24, 12, 5)]
    mask_to_layout(model, every, layouts[0])
    updater.update(1)
    with waiting_is_an_error():
        for step in range(2, 8):
            mask_to_layout(model, every, layouts[step % 3])
            updater.update(step)


def test_batches_of_a_corpus_are_pinned_and_made_ahead(tmp_path: Path) -> None:
    text = write_pair(tmp_path, SENTENCES * 4, SENTENCES * 4)
    corpus = TokenCorpus.build([text], Vocabulary(tiny_tokenizer()), 200, tmp_path / "cache", ("en", "de"))
    stream = iter(BatchStream(corpus, 128, 1, 2, device=torch.device("cuda", 0)))
    plain = iter(BatchStream(corpus, 128, 1, 2))
    for _ in range(20):
        batch, expected = next(stream), next(plain)
        assert all(t.is_pinned() for t in (batch.source, batch.target_in, batch.target_out, batch.real))
        with waiting_is_an_error():
            on_gpu = batch.to(torch.device("cuda", 0))
        assert on_gpu.source.cpu().equal(expected.source)


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_compiled_update_is_the_same_update(precision: Precision) -> None:
    """Gradients differ by rounding alone: fp32 sums in another order, bf16 has eight bits."""
    tolerance = {"32-true": 1e-4, "bf16-mixed": 2e-2}[precision]
    norms, losses = [], []
    for compiled in (False, True):
        model = make_model().eval()  # no dropout, whose draws differ
        updater = make_updater(model, precision, compiled=compiled)
        update = updater.update(1)
        with waiting_is_an_error():
            updater.update(2)
        norms.append(update.gradient_norm)
        losses.append(update.loss)
    assert losses[1] == pytest.approx(losses[0], rel=tolerance)
    assert norms[1] == pytest.approx(norms[0], rel=tolerance)
