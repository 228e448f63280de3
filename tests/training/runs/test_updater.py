"""Updates: nothing makes a GPU wait but reading a result, and gradients add up over batches."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import cycle
from typing import Any

import pytest
import torch
from tests.tiny import SENTENCES, tiny_architecture, tiny_tokenizer
from torch.utils._python_dispatch import TorchDispatchMode

from hmc.artifact import HeadBudget
from hmc.artifact.model.heads import KINDS
from hmc.training import (
    Batch,
    HeadGates,
    HeadMask,
    HeadMaskSpec,
    NeuronGates,
    PruneSettings,
    Transformer,
    Vocabulary,
    build_transformer,
    make_batch,
)
from hmc.training.pruning.schedule import ClosingSchedule, ClosingTarget
from hmc.training.pruning.targets import HeadTarget, NeuronTarget
from hmc.training.runs.optimizer import make_optimizer
from hmc.training.runs.processes import make_fabric
from hmc.training.runs.recipe import OptimizerName, RunSection, TrainSection
from hmc.training.runs.updater import Masking, Updater

FABRIC = make_fabric(RunSection(device="cpu"))
WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "equal", "unique", "repeat_interleave")
"""Operations whose result the host needs before it goes on: `.item()`, `bool()`, boolean indexing and their like."""


class CountWaits(TorchDispatchMode):
    """Counts the operations that would make a host wait for its GPU; on a CPU they are the same ones."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.partition(".")[0]
        if name in WAITS:
            self.found[name] += 1
        indexes = args[1] if name in ("index", "index_put", "index_put_") else ()
        if any(index is not None and index.dtype == torch.bool for index in indexes):
            self.found["boolean index"] += 1
        return func(*args, **(kwargs or {}))


def batches() -> list[Batch]:
    """Two padded batches of real sentences, each to be translated into the next one."""
    vocabulary = Vocabulary(tiny_tokenizer())
    ids = [vocabulary.encode(s) for s in SENTENCES]
    return [make_batch(ids[a:b], ids[a + 1 : b + 1], vocabulary.pad_id) for a, b in ((0, 3), (3, 9))]


def make_model() -> Transformer:
    torch.manual_seed(0)
    return build_transformer(tiny_architecture())


def make_updater(
    model: Transformer, gates: list[torch.Tensor], masking: Masking | None = None, optimizer: OptimizerName = "adam"
) -> Updater:
    """No dropout: on a CPU it draws its seed on the host, on a GPU it does not."""
    section = TrainSection(accumulate=2, dropout=0.0, warmup_steps=1, optimizer=optimizer)
    weights = [p for p in model.parameters() if not any(p is gate for gate in gates)]
    groups: list[dict[str, Any]] = [
        {"params": weights, "name": "weights"},
        {"params": gates, "name": "gates"},
    ]
    return Updater(FABRIC, model, make_optimizer(groups, section, model), cycle(batches()), section, masking)


@pytest.mark.parametrize("headmask", [None, "random:7", "important:7"])
def test_an_update_does_not_wait_for_the_device(headmask: str | None) -> None:
    model = make_model()
    spec = HeadMaskSpec.parse(headmask) if headmask else None
    masking = HeadMask(model, model.arch.full_layout(), spec, 1, 0.1).applied if spec else None
    updater = make_updater(model, [], masking)
    updater.update(1)  # Adam makes its moments in the first update
    with CountWaits() as counted:
        update = updater.update(2)
        assert counted.found == {}
        assert update.loss > 0
        assert update.gradient_norm > 0
    assert counted.found["_local_scalar_dense"] == 3, "reading a result is what waits: the test sees it"


@pytest.mark.parametrize("l0_lambda", [None, 0.01])
def test_closing_does_not_wait_for_the_device(l0_lambda: float | None) -> None:
    """In no phase: while the budget falls, while gates are pressed to decide, and while they move to their ends."""
    model, steps = make_model(), 20
    settings = PruneSettings(close_steps=steps, l0_lambda=l0_lambda, settle_gates=l0_lambda is not None)
    heads, neurons = HeadGates(model, model.arch.full_layout(), 2.0), NeuronGates(model, 2.0)
    targets: list[ClosingTarget] = [HeadTarget(heads, None if l0_lambda else HeadBudget(((KINDS, 9),)), settings)]
    if l0_lambda is None:
        targets.append(NeuronTarget(neurons, 50, settings))
    closing = ClosingSchedule(targets, steps, settings)
    updater = make_updater(model, [*heads.parameters(), *neurons.parameters()])
    updater.update(1)
    with CountWaits() as counted:
        for step in range(1, steps + 1):
            updater.update(step, partial(closing.penalty, step))
            closing.end_update(step)
        assert counted.found == {}
    assert heads.unsettled() == {}


def test_loss_and_tokens_are_those_of_all_batches() -> None:
    model = make_model().eval()
    update = make_updater(model, []).update(1)
    assert int(update.tokens) == sum(int(b.target_out.ne(2).sum()) for b in batches())
    model = make_model().eval()
    total = 0.0
    with torch.no_grad():
        for batch in batches():
            logits = model.logits(model(batch.source, batch.target_in)).flatten(0, 1)
            total += float(
                torch.nn.functional.cross_entropy(
                    logits, batch.target_out.flatten(), ignore_index=2, label_smoothing=0.1, reduction="sum"
                )
            )
    assert update.loss == pytest.approx(total / int(update.tokens), rel=1e-5)
