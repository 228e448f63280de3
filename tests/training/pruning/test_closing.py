"""Closing gates on a model of 144 heads: exact budgets, settled gates, the λ form, scope, frozen stacks, provenance."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.command import done, run_hmc
from tests.support.files import write_pair
from tests.support.updates import after_updates, interrupted
from tests.tiny import SENTENCES, tiny_architecture, tiny_checkpoint_at

from hmc.artifact import Checkpoint, HeadBudget, HeadLayout, InvalidRequestError, load_checkpoint
from hmc.artifact.model.budgets import parse_budgets
from hmc.artifact.model.heads import KINDS, AttentionKind
from hmc.training import (
    HardConcrete,
    HeadGates,
    NeuronGates,
    PruneRequest,
    PruneSettings,
    PruningRun,
    model_from_checkpoint,
)
from hmc.training.model.gates import CERTAINTY
from hmc.training.pruning.pressure import BudgetPressure, sure_log_alpha, top
from hmc.training.pruning.schedule import ClosingSchedule
from hmc.training.pruning.targets import HeadTarget, NeuronTarget
from hmc.training.runs.recipe import RunSection

SETTINGS = PruneSettings(
    close_steps=30,
    recover_steps=2,
    batch_tokens=128,
    run=RunSection(device="cpu", eval_sentences=1, log_every=10, save_every=7),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint `c` of 2 + 2 layers with 24 heads, 144 in all, and a corpus of sentences and their capitals."""
    folder = tmp_path_factory.mktemp("closing")
    tiny_checkpoint_at(folder / "c", arch=tiny_architecture(heads=24, head_dim=2), gates=False)
    write_pair(folder, SENTENCES * 2)
    return folder


def prune(folder: Path, out: Path, targets: list[int] | list[HeadBudget], **settings: object) -> list[Checkpoint]:
    corpus = f"{folder}/t.en {folder}/t.de"
    chosen = SETTINGS.model_copy(update=settings)
    return [
        load_checkpoint(p) for p in PruningRun(PruneRequest(folder / "c", targets, [corpus], corpus, out, chosen)).run()
    ]


def assert_settled(pruned: Checkpoint) -> None:
    """Kept heads are fully open with probability 0.95 or more, the others closed, by log α as stored."""
    assert pruned.gates is not None
    assert pruned.config.provenance["unsettled_gates"] == {}
    kept = set(pruned.layout.heads())
    for head in pruned.architecture.full_layout().heads():
        log_alpha = pruned.gates[head.kind][head.layer, head.index]
        sure = 1 / (1 + np.exp(1.2 - abs(log_alpha)))
        assert sure > 0.95
        assert (log_alpha > 0) == (head in kept)


def counts(pruned: Checkpoint) -> dict[AttentionKind, int]:
    return {kind: sum(map(len, pruned.layout[kind])) for kind in KINDS}


@pytest.mark.parametrize(("targets", "seed"), [([143], 1), ([72, 36], 1), ([72, 36], 2), ([7], 2), ([1], 1)])
def test_a_run_ends_with_exactly_n_heads_and_every_gate_settled(
    folder: Path, tmp_path: Path, targets: list[int], seed: int
) -> None:
    pruned = prune(folder, tmp_path / "p", targets, seed=seed)
    assert [p.layout.total for p in pruned] == targets
    for checkpoint in pruned:
        assert_settled(checkpoint)
    assert all(wide.layout.contains(narrow.layout) for wide, narrow in pairwise(pruned))


def test_the_shortest_run_settles_too(folder: Path, tmp_path: Path) -> None:
    [pruned] = prune(folder, tmp_path / "p", [20], close_steps=10, recover_steps=0)
    assert pruned.layout.total == 20
    assert_settled(pruned)


def test_a_larger_lambda_leaves_fewer_heads(folder: Path, tmp_path: Path) -> None:
    left = []
    for strength in (1e-3, 0.02, 0.4):
        [pruned] = prune(folder, tmp_path / str(strength), [], l0_lambda=strength, settle_gates=True)
        assert_settled(pruned)
        left.append(pruned.layout.total)
    assert 144 > left[0] > left[1] > left[2]


def head_closing(folder: Path, budget: HeadBudget | None, **changes: object) -> tuple[ClosingSchedule, HeadTarget]:
    """A closing stage of 20 updates on the gates of the checkpoint; log α of gate i is 3 - i / 24."""
    source = load_checkpoint(folder / "c")
    model = model_from_checkpoint(source)
    gates = HeadGates(model, source.layout, 2.0)
    gates.set_log_alpha(3 - torch.arange(144) / 24)
    settings = SETTINGS.model_copy(update=changes)
    target = HeadTarget(gates, budget, settings)
    return ClosingSchedule([target], 20, settings), target


@pytest.mark.parametrize("number", [1, 3, None])
def test_the_best_head_of_cross_attention_stays(folder: Path, number: int | None) -> None:
    """log α falls with the position, and the heads of cross-attention come last."""
    if number is None:
        _, target = head_closing(folder, None, l0_lambda=0.1)
        target.gates.set_log_alpha(-torch.arange(144) / 24)
    else:
        _, target = head_closing(folder, HeadBudget(((KINDS, number),)))
    kept = list(target.layout().heads())
    [seeing] = [head for head in kept if head.kind == "cross"]
    first = next(i for i, head in enumerate(target.gates.heads) if head.kind == "cross")
    assert seeing == target.gates.heads[first]
    assert len(kept) == (number or 1)


def test_lambda_alone_is_the_objective_of_the_paper(folder: Path) -> None:
    """L_C = Σ (1 - P(g = 0)) and nothing more in every update (Voita et al. 2019, 6.1); no gate is moved by rank."""
    strength = 0.05
    pure, left = head_closing(folder, None, l0_lambda=strength)
    settled, settled_left = head_closing(folder, None, l0_lambda=strength, settle_gates=True)
    log_alpha = left.gates.log_alpha().detach()
    closed = torch.sigmoid(-log_alpha - CERTAINTY)
    for step in range(1, 21):
        assert pure.penalty(step).item() == pytest.approx(strength * float((1 - closed).sum()), rel=1e-6)
        assert not pure.decided(step)
        assert pure.rates(step)["gates"] > 0
        pure.end_update(step)
    assert torch.equal(left.gates.log_alpha(), log_alpha)
    assert left.layout().total == int((log_alpha > 0).sum()) + 1 < 144, "and the best head of cross-attention"
    assert settled.penalty(16) > pure.penalty(16)
    assert settled.decided(20)
    settled.end_update(20)
    assert not settled_left.gates.unsettled()
    assert left.gates.unsettled()


def test_lambda_alone_names_the_gates_that_have_not_settled(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [pruned] = prune(folder, tmp_path / "p", [], l0_lambda=0.02, close_steps=10, recover_steps=0)
    left = pruned.config.provenance["unsettled_gates"]
    assert left
    assert pruned.config.provenance["decided_by_rank"] == {}
    assert f"{len(left)} gates have not settled, heads with log α > 0 stay" in " ".join(capsys.readouterr().err.split())
    assert pruned.gates is not None
    for head in pruned.architecture.full_layout().heads():
        assert (pruned.gates[head.kind][head.layer, head.index] > 0) == (head in set(pruned.layout.heads()))


def test_settling_belongs_to_lambda(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="settle_gates belongs to l0_lambda"):
        prune(folder, tmp_path / "p", [9], settle_gates=True)


def test_gates_are_drawn_once_an_update(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All parts of an accumulated batch see the same draw, and the next update another one (Voita et al. 2019 draw one
    for each batch)."""
    seen: dict[int, list[torch.Tensor]] = {}
    updates = 0
    sample = HardConcrete.sample

    def counted(_: torch.optim.Optimizer) -> None:
        nonlocal updates
        updates += 1

    def noted(self: HardConcrete) -> torch.Tensor:
        values = sample(self)
        seen.setdefault(updates + 1, []).append(values.detach().clone())
        return values

    monkeypatch.setattr(HardConcrete, "sample", noted)
    with after_updates(counted):
        prune(folder, tmp_path / "p", [72], accumulate=3, close_steps=2, recover_steps=1)
    modules = 6
    for number in (1, 2):
        first, *others = (torch.cat(seen[number][at : at + modules]) for at in range(0, 3 * modules, modules))
        assert len(seen[number]) >= 3 * modules
        assert all(torch.equal(first, other) for other in others)
    assert not torch.equal(torch.cat(seen[1][:modules]), torch.cat(seen[2][:modules]))


def test_gates_that_an_earlier_budget_closed_stay_closed(folder: Path) -> None:
    """They are 0 in every draw, count in no budget and get no pressure, whatever their log α."""
    torch.manual_seed(0)
    source = load_checkpoint(folder / "c")
    model = model_from_checkpoint(source)
    gates = HeadGates(model, source.layout, 3.0)
    heads = list(source.layout.heads())
    kept = HeadLayout.from_heads([head for head in heads if head.index < 12], 2, 2)
    target = HeadTarget(gates, HeadBudget(((KINDS, 30),)), SETTINGS, kept)
    closing = ClosingSchedule([target], 20, SETTINGS)
    closed = torch.tensor([head.index >= 12 for head in heads])
    with torch.no_grad():
        draws = torch.stack([torch.cat([hard.sample() for hard in gates.gates]) for _ in range(30)])
    assert (draws[:, closed] == 0).all()
    assert (draws[:, ~closed] > 0).any(0).all()
    open_probability = float(torch.sigmoid(torch.tensor(3.0 + CERTAINTY)))
    assert target.starts == pytest.approx([72 * open_probability])
    assert closing.scalars(1)["open"] == pytest.approx(72 * open_probability)
    assert target.pressures[0].total == 72
    for step in (1, 16):
        gradient = torch.cat(torch.autograd.grad(closing.penalty(step), gates.parameters()))
        assert (gradient[closed] == 0).all()
        assert (gradient[~closed] != 0).all()
    closing.end_update(20)
    assert (gates.log_alpha()[closed] == 3).all(), "only gates of this stage move to their ends"
    assert target.layout().total == 30
    assert kept.contains(target.layout())


def test_momentum_does_not_move_gates_that_an_earlier_budget_closed(folder: Path) -> None:
    """Adam moves a parameter whose gradient is 0 as long as its moments remember earlier gradients."""
    source = load_checkpoint(folder / "c")
    gates = HeadGates(model_from_checkpoint(source), source.layout, 2.0)
    optimizer = torch.optim.Adam(gates.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        (-gates.log_alpha().sum()).backward()
        optimizer.step()
    gates.set_log_alpha(torch.full((144,), -5.0))
    heads = list(source.layout.heads())
    closed = torch.tensor([head.index >= 12 for head in heads])
    kept = HeadLayout.from_heads([head for head in heads if head.index < 12], 2, 2)
    closing = ClosingSchedule([HeadTarget(gates, HeadBudget(((KINDS, 30),)), SETTINGS, kept)], 20, SETTINGS)
    for step in range(1, 6):
        optimizer.zero_grad()
        closing.penalty(step).backward()
        optimizer.step()
        closing.end_update(step)
    log_alpha = gates.log_alpha().detach()
    assert (log_alpha[closed] == -5).all()
    assert (log_alpha[~closed] != -5).all()


def test_neurons_that_an_earlier_budget_closed_stay_closed(folder: Path) -> None:
    model = model_from_checkpoint(load_checkpoint(folder / "c"))
    gates = NeuronGates(model, 3.0)
    kept = gates.chosen(torch.arange(gates.total) % 3 == 0)
    target = NeuronTarget(gates, 20, SETTINGS, kept)
    target.begin()
    expected = gates.open_probabilities().reshape(-1, 3)
    assert (expected[:, 1:] == 0).all()
    assert target.starts == pytest.approx([expected[:, 0].sum().item()])
    assert target.pressures[0].total == gates.total // 3


def test_budgets_by_kind_are_exact_and_other_kinds_keep_their_heads(folder: Path, tmp_path: Path) -> None:
    pruned = prune(folder, tmp_path / "p", parse_budgets("enc=10,cross=24;enc=3,cross=20"))
    assert [counts(p) for p in pruned] == [
        {"encoder_self": 10, "decoder_self": 48, "cross": 24},
        {"encoder_self": 3, "decoder_self": 48, "cross": 20},
    ]
    for checkpoint in pruned:
        assert_settled(checkpoint)
    assert sorted(p.name for p in (tmp_path / "p").iterdir() if p.name.startswith("enc")) == [
        "enc10-cross24",
        "enc3-cross20",
    ]


@pytest.mark.parametrize(("stack", "scope"), [("decoder", "encoder_self"), ("encoder", "cross")])
def test_encoder_only_pruning_leaves_a_frozen_decoder_alone(
    folder: Path, tmp_path: Path, stack: str, scope: AttentionKind
) -> None:
    """Voita et al. 2019, section 6.2: gates on one kind, the weights of the other stack fixed."""
    source = load_checkpoint(folder / "c")
    [pruned] = prune(folder, tmp_path / "p", [5], scope=(scope,), freeze=stack)
    assert counts(pruned) == dict.fromkeys(KINDS, 48) | {scope: 5}
    fixed = [n for n in pruned.tensors if n.startswith(f"{stack}.") or n == "shared.weight"]
    learned = [n for n in pruned.tensors if n not in fixed and n != "final_logits_bias"]
    assert all(np.array_equal(pruned.tensors[n], source.tensors[n]) for n in fixed)
    same_shape = [n for n in learned if pruned.tensors[n].shape == source.tensors[n].shape]
    assert same_shape
    assert not any(np.array_equal(pruned.tensors[n], source.tensors[n]) for n in same_shape)
    assert pruned.config.provenance["trajectory"][-1].keys() >= {"open", f"open/{scope}", "unsettled", "budget"}


def test_the_trajectory_and_the_gates_that_did_not_settle_are_on_record(folder: Path, tmp_path: Path) -> None:
    """A budget that falls in ten updates leaves gates undecided; they are named with their probability."""
    [pruned] = prune(folder, tmp_path / "p", [20], close_steps=10)
    trajectory = json.loads((tmp_path / "p" / "trajectory.json").read_text())
    assert trajectory == pruned.config.provenance["trajectory"]
    last = trajectory[-1]
    assert last["open"] == pytest.approx(sum(last[f"open/{kind}"] for kind in KINDS))
    assert last["open"] == pytest.approx(20, abs=1.0)
    assert last["unsettled"] == 0
    undecided = pruned.config.provenance["decided_by_rank"]
    assert undecided
    heads = {str(head) for head in pruned.architecture.full_layout().heads()}
    assert undecided.keys() <= heads
    assert all(0 < p < 1 for p in undecided.values())
    tags = (tmp_path / "p" / "log.jsonl").read_text()
    assert '"open/encoder_self"' in tags


def test_an_interrupted_run_ends_as_an_uninterrupted_one(folder: Path, tmp_path: Path) -> None:
    """Stopped in the last phase of closing, and again while recovering."""
    settings: dict[str, object] = {
        "close_steps": 12, "recover_steps": 6, "run": SETTINGS.run.model_copy(update={"save_every": 5}),
    }  # fmt: skip
    whole = prune(folder, tmp_path / "whole", [50, 20], **settings)
    for stop in (12, 18):
        with interrupted(stop):
            prune(folder, tmp_path / f"p{stop}", [50, 20], **settings)
        resumed = prune(folder, tmp_path / f"p{stop}", [50, 20], **settings)
        for a, b in zip(whole, resumed, strict=True):
            assert a.layout == b.layout
            assert all(np.array_equal(a.tensors[n], b.tensors[n]) for n in a.tensors)
            assert a.config.provenance == b.config.provenance
    with pytest.raises(InvalidRequestError, match="other settings"):
        prune(folder, tmp_path / "whole", [50, 21], **settings)


@pytest.mark.parametrize(
    ("targets", "settings", "message"),
    [
        (parse_budgets("enc=48,cross=48"), {}, "below the 96 open heads"),
        (parse_budgets("enc=49"), {}, "below the 48 open heads"),
        (parse_budgets("enc=49,cross=1"), {}, "this model has 48"),
        (parse_budgets("enc=9;dec=9"), {}, "falling budgets of the same kinds"),
        (parse_budgets("enc=9;enc=9"), {}, "falling budgets"),
        (parse_budgets("enc=9"), {"scope": ("cross",)}, "outside the scope"),
        (parse_budgets("9"), {"l0_lambda": 0.1}, "either"),
        (parse_budgets("9,0"), {}, "target_heads: no head of cross-attention would stay open"),
        (parse_budgets("cross=0"), {}, "no head of cross-attention would stay open"),
    ],
)
def test_impossible_requests(
    folder: Path, tmp_path: Path, targets: list[HeadBudget], settings: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        prune(folder, tmp_path / "p", targets, **settings)
    assert not (tmp_path / "p").exists()


def test_a_kind_without_heads_gets_no_gates(folder: Path, tmp_path: Path) -> None:
    [pruned] = prune(folder, tmp_path / "p", parse_budgets("enc=0"), recover_steps=0)
    corpus = f"{folder}/t.en {folder}/t.de"
    settings = SETTINGS.model_copy(update={"scope": ("encoder_self",), "l0_lambda": 0.1})
    with pytest.raises(InvalidRequestError, match="no heads of encoder_self left"):
        PruningRun(PruneRequest(tmp_path / "p" / "enc0", [], [corpus], corpus, tmp_path / "q", settings))
    assert pruned.layout.total == 96


def test_the_command_prunes_by_kind_with_a_frozen_decoder(folder: Path, tmp_path: Path) -> None:
    corpus = f"{folder}/t.en {folder}/t.de"
    arguments = ["prune", str(folder / "c"), "--data", corpus, "--dev", corpus, "--out", str(tmp_path / "p")]
    options = ["--target-heads", "enc=4", "--scope", "enc", "--freeze", "decoder", "--device", "cpu", "--json"]
    steps = ["--close-steps", "10", "--recover-steps", "1", "--eval-sentences", "1", "--batch-tokens", "512"]
    result = done(run_hmc(arguments + options + steps))
    [row] = json.loads(result.stdout)
    assert row["checkpoint"] == str(tmp_path / "p" / "enc4")
    assert row["heads"] == 4 + 48 + 48
    assert {"dev_before", "dev_after"} <= row["metrics"].keys()


def test_sure_log_alpha_parts_the_sides_and_keeps_their_order() -> None:
    torch.manual_seed(0)
    for spread in (0.01, 3.0, 40.0):
        log_alpha = torch.randn(20) * spread
        keep = top(log_alpha, 7)
        sure = sure_log_alpha(log_alpha, keep)
        assert torch.equal(sure.argsort(), log_alpha.argsort())
        assert torch.equal(sure > 0, keep)
        assert sure.abs().min() >= 5
        assert sure.abs().max() <= 8.0001
    assert int(top(torch.randn(5), 0).sum()) == 0
    torch.testing.assert_close(
        sure_log_alpha(torch.tensor([1.0, 1.0]), torch.tensor([True, True])), torch.tensor([5.0, 5.0])
    )


def test_the_decision_penalty_points_away_from_the_middle() -> None:
    log_alpha = torch.zeros(2, requires_grad=True)
    HardConcrete.indecision(log_alpha, torch.tensor([True, False])).mean().backward()
    assert log_alpha.grad is not None
    assert log_alpha.grad[0] < 0 < log_alpha.grad[1]
    sure = torch.tensor([9.0, -9.0])
    assert (
        HardConcrete.indecision(sure, torch.tensor([True, False])).mean()
        < 0.001
        < HardConcrete.indecision(sure, torch.tensor([False, True])).mean()
    )


def test_budget_pressure_is_zero_on_budget_and_its_multipliers_follow_the_gap() -> None:
    pressure = BudgetPressure(10)
    half = torch.full((10,), 0.5)
    assert pressure.penalty(half, 5.0) == 0
    assert pressure.penalty(half, 2.0) > 0
    pressure.ascend(torch.tensor(5.0), 2.0)
    assert pressure.linear > 0
    pressure.ascend(torch.tensor(0.0), 5.0)
    assert pressure.linear < 0
    assert pressure.quadratic > 50
