"""Gates on feed-forward neurons: exact budgets, alone and with heads; the slim checkpoint; interrupted runs."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.command import done, refused, run_hmc
from tests.slim_ffn import random_neurons, without_neurons
from tests.support.updates import interrupted

from hmc.artifact import Checkpoint, HeadBudget, InvalidRequestError, load_checkpoint, save_checkpoint
from hmc.artifact.checkpoint.slimming import slim_ffn
from hmc.artifact.model.budgets import parse_budgets
from hmc.artifact.model.ffn import NeuronBudget, parse_neuron_budgets
from hmc.training import (
    NeuronGates,
    PruneRequest,
    PruneSettings,
    PruningRun,
    Recipe,
    Scores,
    export_tensors,
    mask_neurons,
    model_from_checkpoint,
    nested_finetune,
    open_gates,
    train,
)
from hmc.training.analysis.common.trace import trace_decoder, trace_encoder
from hmc.training.analysis.relevance import LrpScores
from hmc.training.runs.log import RunLog
from hmc.training.runs.recipe import RunSection

SETTINGS = PruneSettings(
    close_steps=30,
    recover_steps=2,
    batch_tokens=512,
    run=RunSection(device="cpu", eval_sentences=1, log_every=10, save_every=7),
)
SOURCE = torch.tensor([[5, 9, 30, 11, 0], [7, 8, 0, 2, 2]])
TARGET_IN = torch.tensor([[2, 40, 41, 42], [2, 50, 2, 2]])


def corpus(folder: Path) -> str:
    return f"{folder}/t.en {folder}/t.de"


def prune(
    folder: Path, out: Path, neurons: str, heads: list[HeadBudget] | None = None, **settings: object
) -> list[Checkpoint]:
    run = PruningRun(
        PruneRequest(
            folder / "c",
            heads or [],
            [corpus(folder)],
            corpus(folder),
            out,
            SETTINGS.model_copy(update=settings),
            parse_neuron_budgets(neurons),
        )
    )
    return [load_checkpoint(path) for path in run.run()]


@pytest.mark.parametrize(("budget", "seed"), [("191", 2), ("50%,20", 1), ("50%,20", 2), ("0", 1)])
def test_a_run_ends_with_exactly_n_neurons_and_every_gate_settled(
    folder: Path, tmp_path: Path, budget: str, seed: int
) -> None:
    source = load_checkpoint(folder / "c")
    pruned = prune(folder, tmp_path / "p", budget, seed=seed)
    wanted = [b.neurons(192) for b in parse_neuron_budgets(budget)]
    assert [p.ffn_widths.total for p in pruned] == wanted
    for checkpoint in pruned:
        assert checkpoint.config.provenance["unsettled_neurons"] == 0
        assert checkpoint.layout == source.layout
        assert checkpoint.gates is not None
        assert source.gates is not None
        assert all(np.array_equal(checkpoint.gates[kind], source.gates[kind]) for kind in source.gates)
        last = checkpoint.config.provenance["trajectory"][-1]
        assert last["neurons"] == pytest.approx(checkpoint.ffn_widths.total, abs=2)
        assert last["neurons"] == pytest.approx(last["neurons/encoder"] + last["neurons/decoder"])
    for wide, narrow in pairwise(pruned):
        pairs = zip(wide.ffn_widths.layers(), narrow.ffn_widths.layers(), strict=True)
        assert all(a >= b for (*_, a), (*_, b) in pairs)


def test_the_checkpoint_is_the_masked_model_without_its_neurons(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slim checkpoint computes what the masked model computed when it was evaluated."""
    seen = []

    def keep(self: PruningRun, log: RunLog, what: str) -> Scores:
        self.model.eval()
        with torch.no_grad():
            seen.append(self.model(SOURCE, TARGET_IN))
        return evaluate(self, log, what)

    evaluate = PruningRun._evaluate
    monkeypatch.setattr(PruningRun, "_evaluate", keep)
    [pruned] = prune(folder, tmp_path / "p", "60")
    with torch.no_grad():
        states = model_from_checkpoint(pruned).eval()(SOURCE, TARGET_IN)
    torch.testing.assert_close(states, seen[1], atol=1e-4, rtol=0)
    assert (seen[0] - seen[1]).abs().max() > 0.01


def test_heads_and_neurons_close_together(folder: Path, tmp_path: Path) -> None:
    pruned = prune(folder, tmp_path / "p", "50%,30", parse_budgets("12,5"))
    assert [(p.layout.total, p.ffn_widths.total) for p in pruned] == [(12, 96), (5, 30)]
    assert sorted(p.name for p in (tmp_path / "p").glob("h*")) == ["h12-f96", "h5-f30"]
    for checkpoint in pruned:
        assert checkpoint.config.provenance["unsettled_gates"] == {}
        assert checkpoint.config.provenance["unsettled_neurons"] == 0
    scalars = json.loads((tmp_path / "p" / "trajectory.json").read_text())[-1]
    assert {"open", "budget", "unsettled", "neurons", "neuron_budget", "neurons_unsettled"} <= scalars.keys()


def test_one_budget_of_neurons_serves_all_budgets_of_heads(folder: Path, tmp_path: Path) -> None:
    wide, narrow = prune(folder, tmp_path / "p", "40", parse_budgets("12,5"))
    assert wide.ffn_widths == narrow.ffn_widths
    assert (wide.ffn_widths.total, narrow.layout.total) == (40, 5)


def test_a_slim_model_is_pruned_further(folder: Path, tmp_path: Path) -> None:
    """One of its layers has no neurons left. A share counts the remaining neurons."""
    source = load_checkpoint(folder / "c")
    kept = random_neurons(source.architecture, 7) | {"decoder": [[], [1, 5, 30, 31]]}
    save_checkpoint(without_neurons(source, kept), tmp_path / "slim")
    widths = load_checkpoint(tmp_path / "slim").ffn_widths
    run = PruningRun(
        PruneRequest(
            tmp_path / "slim",
            parse_budgets("7"),
            [corpus(folder)],
            corpus(folder),
            tmp_path / "p",
            SETTINGS,
            parse_neuron_budgets("50%"),
        )
    )
    [path] = run.run()
    pruned = load_checkpoint(path)
    assert pruned.ffn_widths.total == round(widths.total / 2)
    assert pruned.ffn_widths.decoder[0] == 0
    assert pruned.layout.total == 7


def test_an_interrupted_run_ends_as_an_uninterrupted_one(folder: Path, tmp_path: Path) -> None:
    """Stopped while the second budget closes, and while the first recovers."""
    request = ("50%,25%", parse_budgets("12,5"))
    settings: dict[str, Any] = {
        "close_steps": 12, "recover_steps": 6, "run": SETTINGS.run.model_copy(update={"save_every": 5}),
    }  # fmt: skip
    whole = prune(folder, tmp_path / "whole", *request, **settings)
    for stop in (18, 25):
        with interrupted(stop):
            prune(folder, tmp_path / f"p{stop}", *request, **settings)
        resumed = prune(folder, tmp_path / f"p{stop}", *request, **settings)
        for a, b in zip(whole, resumed, strict=True):
            assert (a.layout, a.ffn_widths) == (b.layout, b.ffn_widths)
            assert all(np.array_equal(a.tensors[n], b.tensors[n]) for n in a.tensors)
            assert a.config.provenance == b.config.provenance
    with pytest.raises(InvalidRequestError, match="other settings"):
        prune(folder, tmp_path / "whole", "50%,24%", parse_budgets("12,5"), **settings)


@pytest.mark.parametrize(
    ("neurons", "heads", "settings", "message"),
    [
        ("192", "", {}, "has 192 feed-forward neurons"),
        ("20,30", "", {}, "give each budget smaller than the one before, not 20, 30"),
        ("30,20,10", "12,5", {}, "3 and 2 do not pair up"),
        ("30", "", {"l0_lambda": 0.1}, "either target_heads, target_ffn or both, or l0_lambda"),
    ],
)
def test_impossible_requests(
    folder: Path, tmp_path: Path, neurons: str, heads: str, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        prune(folder, tmp_path / "p", neurons, parse_budgets(heads), **settings)
    assert not (tmp_path / "p").exists()


def test_a_model_without_neurons_gets_no_gates(folder: Path) -> None:
    none = without_neurons(load_checkpoint(folder / "c"), {"encoder": [[], []], "decoder": [[], []]})
    with pytest.raises(InvalidRequestError, match="no feed-forward neurons left"):
        NeuronGates(model_from_checkpoint(none), 2.0)


def test_nested_levels_do_not_mix_widths(folder: Path, tmp_path: Path) -> None:
    prune(folder, tmp_path / "p", "60", parse_budgets("12"), recover_steps=0)
    pruned = tmp_path / "p" / "h12-f60"
    text = corpus(folder)
    with pytest.raises(InvalidRequestError, match="prune its neurons first, then the heads of the result"):
        nested_finetune(
            PruneRequest(folder / "c", (), [text], text, tmp_path / "n", SETTINGS, nested_steps=2), [pruned]
        )
    nested = nested_finetune(PruneRequest(pruned, (), [text], text, tmp_path / "n", SETTINGS, nested_steps=2), [pruned])
    assert load_checkpoint(nested).ffn_widths == load_checkpoint(pruned).ffn_widths


def test_training_does_not_start_from_a_model_without_some_neurons(folder: Path, tmp_path: Path) -> None:
    source = load_checkpoint(folder / "c")
    save_checkpoint(without_neurons(source, random_neurons(source.architecture, 7)), tmp_path / "slim")
    text, arch = corpus(folder), source.architecture
    recipe = Recipe.model_validate(
        {
            "data": {"train": [text], "dev": text, "max_length": arch.max_positions},
            "model": {
                **arch.model_dump(include={"d_model", "ffn_dim", "encoder_layers", "decoder_layers", "heads"}),
                **arch.model_dump(include={"head_dim", "max_positions"}),
                "start_from": str(tmp_path / "slim"),
            },
        }
    )
    with pytest.raises(InvalidRequestError, match="has lost feed-forward neurons"):
        train(recipe, tmp_path / "run")


def test_gates_reach_the_layers_in_order(folder: Path) -> None:
    """Closing a gate has the effect of removing its neuron, in every layer and in all regimes."""
    source = load_checkpoint(folder / "c")
    model = model_from_checkpoint(source).eval()
    kept = random_neurons(source.architecture, 11)
    gates = NeuronGates(model, 2.0)
    keep = gates.mask(kept)
    assert gates.chosen(keep) == kept
    assert gates.total == 192
    gates.set_log_alpha(torch.where(keep, 30.0, -30.0))
    slim = model_from_checkpoint(without_neurons(source, kept)).eval()
    with torch.no_grad():
        expected = slim(SOURCE, TARGET_IN)
        torch.testing.assert_close(model(SOURCE, TARGET_IN), expected, atol=1e-5, rtol=0)
        mask_neurons(model, kept)
        torch.testing.assert_close(model(SOURCE, TARGET_IN), expected, atol=1e-5, rtol=0)
        open_gates(model)
        assert (model(SOURCE, TARGET_IN) - expected).abs().max() > 0.01
    whole = slim_ffn(export_tensors(model), source.architecture, kept)
    assert all(np.array_equal(value, whole[name]) for name, value in export_tensors(slim).items())


def test_every_gate_of_an_update_learns(folder: Path) -> None:
    model = model_from_checkpoint(load_checkpoint(folder / "c"))
    gates = NeuronGates(model, 0.0)
    torch.manual_seed(0)
    sum(model(SOURCE, TARGET_IN).square().sum() for _ in range(8)).backward()
    assert all(p.grad is not None and (p.grad != 0).float().mean() > 0.5 for p in gates.parameters())


@pytest.mark.parametrize("seed", [3, 7])
def test_analyses_read_slim_models(folder: Path, seed: int) -> None:
    """The trace agrees with the model and relevance is conserved, even with an empty layer."""
    source = load_checkpoint(folder / "c")
    kept = random_neurons(source.architecture, seed) | {"encoder": [[], [3, 4, 40]]}
    model = model_from_checkpoint(without_neurons(source, kept)).eval()
    encoder = trace_encoder(model, SOURCE)
    decoder = trace_decoder(model, SOURCE, encoder.states, TARGET_IN)
    with torch.no_grad():
        states = model(SOURCE, TARGET_IN)
    torch.testing.assert_close(decoder.states[0], states[0], atol=1e-5, rtol=0)
    scores = LrpScores(model)
    scores.add(SOURCE[0].tolist(), TARGET_IN[0].tolist())
    assert scores.worst < 1e-4


def test_the_command_prunes_neurons(folder: Path, tmp_path: Path) -> None:
    text = corpus(folder)
    arguments = ["prune", str(folder / "c"), "--data", text, "--dev", text, "--out", str(tmp_path / "p"), "--json"]
    options = ["--target-ffn", "25%", "--device", "cpu", "--close-steps", "10", "--recover-steps", "1"]
    result = done(run_hmc([*arguments, *options, "--eval-sentences", "1", "--batch-tokens", "512"]))
    [row] = json.loads(result.stdout)
    assert row["checkpoint"] == str(tmp_path / "p" / "f48")
    assert load_checkpoint(tmp_path / "p" / "f48").ffn_widths.total == 48
    ran = refused(run_hmc([*arguments, *options, "--nested-steps", "5"]))
    assert "--target-ffn alone first" in " ".join(ran.stderr.split())


def test_a_share_is_written_as_it_was_given() -> None:
    assert str(NeuronBudget(33.5, percent=True)) == "33.5%"
