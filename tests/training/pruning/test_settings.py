"""Settings of pruning that training has too: subword sampling, accumulation, warm-up, saved states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.command import done, run_hmc
from tests.support.files import write_pair
from tests.support.updates import after_updates
from tests.tiny import SENTENCES, tiny_checkpoint_at
from torch.optim import Optimizer

from hmc.artifact import InvalidRequestError, load_checkpoint, save_checkpoint
from hmc.training import PruneRequest, PruneSettings, PruningRun
from hmc.training.data.corpus import Splitting
from hmc.training.distillation.settings import DistillSection
from hmc.training.pruning.nested import NestedRun
from hmc.training.pruning.request import request_differences
from hmc.training.pruning.settings import LEAST_STEPS, MOST_STEPS
from hmc.training.runs.recipe import RunSection
from hmc.training.runs.updater import Update, Updater

SETTINGS = PruneSettings(
    close_steps=10,
    recover_steps=2,
    batch_tokens=512,
    run=RunSection(device="cpu", eval_sentences=1, log_every=10, save_every=3),
)
SAMPLED = {"command": "hmc train", "recipe": {"tokenizer": {"bpe_dropout": 0.3, "bpe_dropout_copies": 4}}}
"""Provenance of a checkpoint that was trained with BPE-dropout."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints `c`, and `sampled`, trained with BPE-dropout; a corpus `t` of 24 pairs."""
    folder = tmp_path_factory.mktemp("settings")
    plain = tiny_checkpoint_at(folder / "c")
    plain.config = plain.config.model_copy(update={"provenance": SAMPLED})
    save_checkpoint(plain, folder / "sampled")
    write_pair(folder, SENTENCES * 2)
    return folder


def run(folder: Path, out: Path, checkpoint: str = "c", **settings: object) -> PruningRun:
    text = f"{folder}/t.en {folder}/t.de"
    return PruningRun(PruneRequest(folder / checkpoint, [9], [text], text, out, SETTINGS.model_copy(update=settings)))


# -- subword sampling --------------------------------------------------------------------------------------------


def test_pruning_keeps_the_bpe_dropout_of_the_recipe(folder: Path, tmp_path: Path) -> None:
    plain, sampled = run(folder, tmp_path / "a"), run(folder, tmp_path / "b", "sampled")
    assert len(plain.loop.inputs.corpus) == 24
    assert len(sampled.loop.inputs.corpus) == 4 * 24
    assert sampled.settings.segmentation() == Splitting(0.3, 4, 1)
    drawn = {tuple(sampled.loop.inputs.corpus.batch(np.array([row]))[0][0]) for row in range(4)}
    assert len(drawn) > 1, "the four copies of a sentence are split differently"
    assert len(run(folder, tmp_path / "off", "sampled", bpe_dropout=0.0).loop.inputs.corpus) == 24
    assert len(run(folder, tmp_path / "on", bpe_dropout=0.2, bpe_dropout_copies=2).loop.inputs.corpus) == 48


def test_nested_fine_tuning_keeps_it_too(folder: Path, tmp_path: Path) -> None:
    text = f"{folder}/t.en {folder}/t.de"
    written = run(folder, tmp_path / "p", "sampled").run()
    nested = NestedRun(
        PruneRequest(folder / "sampled", (), [text], text, tmp_path / "p", SETTINGS, nested_steps=2), written
    )
    assert len(nested.loop.inputs.corpus) == 4 * 24
    assert (
        nested.loop.inputs.corpus.fingerprint == run(folder, tmp_path / "p", "sampled").loop.inputs.corpus.fingerprint
    )
    [path] = written
    again = SETTINGS.following(load_checkpoint(path).config.provenance)
    assert again.segmentation() == Splitting(0.3, 4, 1), "a pruned checkpoint names its source"


@pytest.mark.parametrize(
    ("provenance", "expected"),
    [
        ({}, Splitting()),
        ({"recipe": {"tokenizer": {"bpe_dropout": "much"}}}, Splitting()),
        ({"recipe": "another program"}, Splitting()),
        ({"from": SAMPLED, "settings": {"close_steps": 5}}, Splitting(0.3, 4, 1)),
        ({"from": SAMPLED, "settings": {"bpe_dropout": 0.0, "bpe_dropout_copies": 1}}, Splitting()),
    ],
)
def test_where_subword_sampling_is_read(provenance: dict[str, Any], expected: Splitting) -> None:
    assert SETTINGS.following(provenance).segmentation() == expected


def test_a_checkpoint_pruned_without_it_is_pruned_further_with_it() -> None:
    """The first run stored one copy. One copy would split each pair alike in all epochs."""
    pruned = {"from": {}, "settings": SETTINGS.following({}).model_dump(mode="json")}
    again = SETTINGS.model_copy(update={"bpe_dropout": 0.1}).following(pruned)
    assert again.segmentation() == Splitting(0.1, 8, 1)


# -- the base's own training -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("provenance", "updates"),
    [
        ({"recipe": {"train": {"steps": 1300}}, "updates": 1300}, 325),
        ({"recipe": {"train": {"steps": 9999}}, "step": 800}, 200),
        ({"command": "hmc prune", "from": {"recipe": {"train": {"steps": 1300}}}}, 325),
        ({"recipe": {"train": {"steps": 40}}}, LEAST_STEPS),
        ({"recipe": {"train": {"steps": 100_000}}}, MOST_STEPS),
        ({"recipe": "another program"}, MOST_STEPS),
        ({}, MOST_STEPS),
    ],
)
def test_a_pruning_is_as_long_as_the_training_was(provenance: dict[str, Any], updates: int) -> None:
    found = PruneSettings().following(provenance)
    assert (found.close_steps, found.recover_steps) == (updates, updates)
    given = SETTINGS.following(provenance)
    assert (given.close_steps, given.recover_steps) == (10, 2)


def test_a_pruning_computes_as_the_training_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """But not on a CPU that has no products of bf16, where it would take seven times as long."""
    monkeypatch.setattr("hmc.training.runs.processes.computes_bf16", lambda _: True)
    mixed = {"from": {"recipe": {"run": {"precision": "bf16-mixed"}}}}
    assert PruneSettings().following(mixed).run.precision == "bf16-mixed"
    assert PruneSettings(run=RunSection(precision="32-true")).following(mixed).run.precision == "32-true"
    for unknown in ({}, {"recipe": {"run": {"precision": "fp4"}}}):
        assert PruneSettings().following(unknown).run.precision == "32-true"
    monkeypatch.setattr("hmc.training.runs.processes.computes_bf16", lambda _: False)
    assert PruneSettings().following(mixed).run.precision == "32-true"


# -- runs of earlier versions ------------------------------------------------------------------------------------


def test_a_request_of_an_earlier_version_has_the_values_that_it_worked_with() -> None:
    """It split text without BPE-dropout, and its λ form settled gates."""
    request = {"targets": [], "dev": "d", "nested_steps": 0}
    new = ("bpe_dropout", "bpe_dropout_copies", "settle_gates", "accumulate", "warmup_steps")

    def differences(asked: PruneSettings, **stored: object) -> list[str] | None:
        former = SETTINGS.model_copy(update=stored).model_dump(mode="json", exclude={"run", *new})
        return request_differences(json.dumps(request | {"settings": former}), request, asked)

    plain, sampled = SETTINGS.following({}), SETTINGS.following(SAMPLED)
    assert differences(plain) == []
    assert differences(sampled) == ["bpe_dropout: 0.0 there, 0.3 here", "bpe_dropout_copies: 1 there, 4 here"]
    pure = plain.model_copy(update={"l0_lambda": 0.1})
    assert differences(pure, l0_lambda=0.1) == ["settle_gates: True there, False here"]
    assert differences(pure.model_copy(update={"settle_gates": True}), l0_lambda=0.1) == []
    assert request_differences("{", request, plain) is None


def test_another_request_is_refused_with_what_differs(folder: Path, tmp_path: Path) -> None:
    run(folder, tmp_path / "p").run()
    with pytest.raises(InvalidRequestError, match=r"other settings \(accumulate: 1 there, 2 here\)"):
        run(folder, tmp_path / "p", accumulate=2)
    run(folder, tmp_path / "p", run=SETTINGS.run.model_copy(update={"save_every": 1}))


# -- accumulation, warm-up, saved states -------------------------------------------------------------------------


def test_warm_up_raises_the_rate_of_the_weights_alone(folder: Path, tmp_path: Path) -> None:
    rates: list[dict[str, float]] = []

    def noted(optimizer: Optimizer) -> None:
        rates.append({group["name"]: group["lr"] for group in optimizer.param_groups})

    with after_updates(noted):
        run(folder, tmp_path / "p", warmup_steps=4).run()
    assert [r["weights"] for r in rates[:6]] == pytest.approx([3e-4 * share for share in (0.25, 0.5, 0.75, 1, 1, 1)])
    assert rates[0]["gates"] == rates[5]["gates"] > 0
    assert [r["weights"] for r in rates[10:]] == pytest.approx([3e-4, 1.5e-4]), "recovery follows the warm-up"


@pytest.mark.parametrize("distill", [DistillSection(), DistillSection(weight=0.7, hidden=0.2)])
def test_an_interrupted_run_with_accumulation_ends_as_an_uninterrupted_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, distill: DistillSection
) -> None:
    """Stopped between two saved states, three updates apart; alone, and with the source as its teacher."""
    settings: dict[str, Any] = {"accumulate": 2, "warmup_steps": 5, "distill": distill}
    [whole] = run(folder, tmp_path / "whole", **settings).run()
    update, tokens = Updater.update, []

    def failing(self: Updater, step: int, *rest: object) -> Update:
        if step == 8:
            raise InterruptedError
        result = update(self, step, *rest)  # type: ignore[arg-type]
        tokens.append(int(result.tokens))
        return result

    with monkeypatch.context() as patch:
        patch.setattr(Updater, "update", failing)
        with pytest.raises(InterruptedError):
            run(folder, tmp_path / "p", **settings).run()
    assert json.loads((tmp_path / "p" / "state" / "progress.json").read_text())["step"] == 6
    resumed = run(folder, tmp_path / "p", **settings)
    assert resumed.progress.step == 6
    [path] = resumed.run()
    a, b = load_checkpoint(whole), load_checkpoint(path)
    assert a.layout == b.layout
    assert all(np.array_equal(a.tensors[n], b.tensors[n]) for n in a.tensors)
    single = run(folder, tmp_path / "single")
    assert tokens[0] > int(single.loop.updater.update(1).tokens), "an update has more than one batch"


def test_the_command_takes_these_settings(folder: Path, tmp_path: Path) -> None:
    text = f"{folder}/t.en {folder}/t.de"
    arguments = ["prune", str(folder / "sampled"), "--data", text, "--dev", text, "--out", str(tmp_path / "p")]
    steps = ["--close-steps", "10", "--recover-steps", "0", "--eval-sentences", "1", "--batch-tokens", "512"]
    more = ["--accumulate", "2", "--warmup-steps", "3", "--save-every", "4", "--bpe-dropout", "0.1"]
    form = ["--l0-lambda", "0.1", "--settle-gates", "--device", "cpu"]
    done(run_hmc([*arguments, *steps, *more, *form]))
    stored = json.loads((tmp_path / "p" / "request.json").read_text())["settings"]
    expected = {"accumulate": 2, "warmup_steps": 3, "settle_gates": True, "bpe_dropout": 0.1, "bpe_dropout_copies": 4}
    assert {name: stored[name] for name in expected} == expected
    settings = load_checkpoint(tmp_path / "p" / "pruned").config.provenance["settings"]
    assert settings["run"]["save_every"] == 4
