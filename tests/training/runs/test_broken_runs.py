"""Runs whose folder changed in between: corrected and started again, or resumed, or refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file
from tests.support.files import write_pair
from tests.tiny import SENTENCES, tiny_architecture, tiny_checkpoint_at
from tests.training.pruning.test_run_inputs import SETTINGS, recipe

from hmc.artifact import HeadBudget, HeadLayout, HmcError, InvalidArtifactError, InvalidRequestError, load_checkpoint
from hmc.training import PruneRequest, PruningRun, TrainingRun, nested_finetune, train
from hmc.training.trainer.trainer import plan_training


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_pair(tmp_path_factory.mktemp("text") / "text", SENTENCES * 2)


@pytest.fixture(scope="module")
def finished(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with three checkpoints."""
    out = tmp_path_factory.mktemp("run") / "r"
    train(recipe(corpus, train={"steps": 6}), out)
    return out


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "r")
    return tmp_path / "r"


def again(corpus: str, out: Path) -> Path:
    return train(recipe(corpus, train={"steps": 6}), out)


# -- before the first state ---------------------------------------------------------------------------------------


def test_corrected_text_gets_a_new_tokenizer(corpus: str, tmp_path: Path) -> None:
    wrong = write_pair(tmp_path / "text", ["это неправильный текст другого языка для проверки"] * 30 + SENTENCES)
    TrainingRun(recipe(wrong), tmp_path / "r")  # stopped before its first state
    write_pair(tmp_path / "text", SENTENCES * 2)
    train(recipe(wrong), tmp_path / "r")
    expected = TrainingRun(recipe(corpus), tmp_path / "other")
    assert (tmp_path / "r" / "tokenizer.model").read_bytes() == expected.vocabulary.serialized


def test_a_corrected_layout_is_read_again(corpus: str, tmp_path: Path) -> None:
    file, masked = tmp_path / "layout.json", {"headmask": "random:2@cross"}
    settings = recipe(corpus, model={"layout": str(file), "heads": 4}, train=masked)
    for open_heads in ([0], [0, 1, 3]):
        file.write_text(json.dumps({"encoder_self": [[0]], "decoder_self": [[0]], "cross": [open_heads]}))
        if len(open_heads) == 1:
            with pytest.raises(InvalidRequestError, match="cross have 1 open heads in this model, and one has to stay"):
                TrainingRun(settings, tmp_path / "r")
    assert TrainingRun(settings, tmp_path / "r").layout.total == 5


def test_a_corrected_tokenizer_is_read_again(corpus: str, finished: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.model"
    file.write_bytes(b"not a model")
    settings = recipe(corpus, tokenizer={"model": str(file)})
    with pytest.raises(InvalidRequestError, match=r"mine\.model: .*is not a SentencePiece model"):
        TrainingRun(settings, tmp_path / "r")
    shutil.copy(finished / "tokenizer.model", file)
    TrainingRun(settings, tmp_path / "r")


def test_a_tokenizer_and_a_layout_that_changed_are_refused_by_name(corpus: str, tmp_path: Path) -> None:
    """A flipped bit in a vocabulary gives other tokens, and a flipped digit of a layout another model."""
    heads, out = tmp_path / "heads.json", tmp_path / "r"
    heads.write_text(json.dumps({"encoder_self": [[0]], "decoder_self": [[0]], "cross": [[0, 1]]}))
    settings = recipe(corpus, model={"layout": str(heads)})
    train(settings, out)
    for name in ("tokenizer.model", "layout.json"):
        whole = (out / name).read_bytes()
        damaged = bytearray(whole)
        damaged[len(whole) // 2] ^= 1
        for content in (damaged, whole[:-1], None):
            (out / name).unlink() if content is None else (out / name).write_bytes(content)
            for begin in (train, plan_training):
                with pytest.raises(InvalidArtifactError, match=rf"run folder .*\n.*{name} is .*\nPut it back"):
                    begin(settings, out)
        (out / name).write_bytes(whole)
    train(settings, out)
    (out / "digests.json").unlink()  # as in a folder of an earlier version
    train(settings, out)


def test_a_request_that_a_full_disk_cut_short(corpus: str, tmp_path: Path) -> None:
    tiny_checkpoint_at(tmp_path / "c")
    (tmp_path / "p").mkdir()
    for content in ("", "{", "[]", "{}"):
        (tmp_path / "p" / "request.json").write_text(content)
        PruningRun(PruneRequest(tmp_path / "c", [9], [corpus], corpus, tmp_path / "p", SETTINGS))
        assert json.loads((tmp_path / "p" / "request.json").read_text())["settings"]


# -- finished ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", ["all", "best", "worst"])
def test_a_finished_run_does_not_write_its_result_again(corpus: str, copied: Path, gone: str) -> None:
    before = (copied / "final" / "model.safetensors").read_bytes()
    evaluations = json.loads((copied / "state" / "progress.json").read_text())["evaluations"]
    ranked = [copied / "checkpoints" / f"step-{e['step']:07d}" for e in sorted(evaluations, key=lambda e: -e["bleu"])]
    assert all(path.is_dir() for path in ranked)
    removed = {"all": ranked, "best": ranked[:1], "worst": ranked[-1:]}[gone]
    for path in removed:
        shutil.rmtree(path)
    assert again(corpus, copied) == copied / "final"
    assert (copied / "final" / "model.safetensors").read_bytes() == before
    shutil.rmtree(copied / "final")
    if gone == "all":
        with pytest.raises(InvalidRequestError, match="has none of the run's checkpoints"):
            again(corpus, copied)
    else:
        made = load_checkpoint(again(corpus, copied)).config.provenance
        assert set(made["checkpoints"]) <= {int(path.name.removeprefix("step-")) for path in ranked if path.is_dir()}


@pytest.mark.parametrize("margin", [-1000.0, 1000.0])
def test_final_dev_scores_are_of_beam_4(
    corpus: str, copied: Path, monkeypatch: pytest.MonkeyPatch, margin: float
) -> None:
    monkeypatch.setattr("hmc.training.runs.selection.AVERAGE_MARGIN", margin)
    shutil.rmtree(copied / "final")
    made = load_checkpoint(again(corpus, copied))
    assert made.metrics["dev"]["beam"] == 4
    steps = made.config.provenance["checkpoints"]
    assert made.config.provenance["step"] == steps[-1]
    assert len(steps) == (1 if margin < 0 else 3)
    if margin < 0:
        best = load_file(copied / "checkpoints" / f"step-{steps[0]:07d}" / "model.safetensors")
        assert all((made.tensors[name] == best[name]).all() for name in best)


# -- damaged states -----------------------------------------------------------------------------------------------


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:100])


def unknown_key(file: Path) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | {"other": 1}))


DAMAGES: list[tuple[str, Callable[[Path], None], str]] = [
    ("weights.safetensors", cut, "header"),
    ("optimizer.safetensors", cut, "header"),
    ("rng.safetensors", cut, "header"),
    ("progress.json", unknown_key, "another version wrote it"),
]


@pytest.mark.parametrize(("name", "damage", "message"), DAMAGES)
def test_a_damaged_state_says_what_to_do(
    corpus: str, copied: Path, name: str, damage: Callable[[Path], None], message: str
) -> None:
    (copied / "state" / "digests.json").unlink()  # as in a state of an earlier version
    damage(copied / "state" / name)
    with pytest.raises(InvalidArtifactError, match=rf"(?s)training state .*/state.*({message}).*Delete it to start"):
        again(corpus, copied)


@pytest.mark.parametrize("name", ["optimizer.safetensors", "progress.json", "rng.safetensors", "weights.safetensors"])
def test_no_flipped_bit_of_a_state_is_resumed(corpus: str, copied: Path, name: str) -> None:
    file = copied / "state" / name
    content = bytearray(file.read_bytes())
    content[len(content) * 3 // 4] ^= 1
    file.write_bytes(content)
    message = rf"(?s)training state .*/state.*{name} is not as it was written.*Delete it to start"
    with pytest.raises(HmcError, match=message if name != "progress.json" else name):
        again(corpus, copied)


def test_a_damaged_state_of_nested_fine_tuning(corpus: str, tmp_path: Path) -> None:
    tiny_checkpoint_at(tmp_path / "c")
    written = PruningRun(PruneRequest(tmp_path / "c", [9], [corpus], corpus, tmp_path / "p", SETTINGS)).run()
    nested_finetune(
        PruneRequest(tmp_path / "c", (), [corpus], corpus, tmp_path / "p", SETTINGS, nested_steps=2), written
    )
    unknown_key(tmp_path / "p" / "nested-state" / "progress.json")
    with pytest.raises(InvalidArtifactError, match=r"progress\.json is not as it was written"):
        nested_finetune(
            PruneRequest(tmp_path / "c", (), [corpus], corpus, tmp_path / "p", SETTINGS, nested_steps=2), written
        )
    (tmp_path / "p" / "nested-state" / "digests.json").unlink()
    with pytest.raises(InvalidArtifactError, match="another version wrote it"):
        nested_finetune(
            PruneRequest(tmp_path / "c", (), [corpus], corpus, tmp_path / "p", SETTINGS, nested_steps=2), written
        )


# -- nothing left to close ----------------------------------------------------------------------------------------


def test_a_kind_without_heads_may_have_a_budget_of_none(corpus: str, tmp_path: Path) -> None:
    arch = tiny_architecture()
    layout = HeadLayout.from_json(arch.full_layout().to_json() | {"encoder_self": [[], []]})
    tiny_checkpoint_at(tmp_path / "c", layout=layout, gates=False)
    budget = HeadBudget(((("encoder_self",), 0), (("decoder_self",), 5), (("cross",), 4)))
    [path] = PruningRun(PruneRequest(tmp_path / "c", [budget], [corpus], corpus, tmp_path / "p", SETTINGS)).run()
    found = load_checkpoint(path).layout
    assert [sum(map(len, found[kind])) for kind in ("encoder_self", "decoder_self", "cross")] == [0, 5, 4]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"targets": [HeadBudget(((("encoder_self",), 0),))]}, "no heads of encoder_self left to close"),
        ({"targets": [0]}, "no heads of encoder_self, decoder_self, cross left to close"),
    ],
)
def test_no_heads_left(corpus: str, tmp_path: Path, asked: dict[str, Any], message: str) -> None:
    tiny_checkpoint_at(tmp_path / "c", layout=HeadLayout.full(2, 2, 0), gates=False)
    with pytest.raises(HmcError, match=message):
        PruningRun(PruneRequest(tmp_path / "c", asked["targets"], [corpus], corpus, tmp_path / "p", SETTINGS))
