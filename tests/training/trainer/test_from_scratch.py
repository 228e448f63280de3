"""Training with a given head layout from the first step (Voita et al. 2019, table 2, right column)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.command import run_hmc
from tests.support.files import write_pair
from tests.tiny import SENTENCES

from hmc.artifact import HeadLayout, load_checkpoint
from hmc.artifact.model.architecture import parameter_count

LAYOUT = HeadLayout(encoder_self=((1,),), decoder_self=((), (0, 3)), cross=((0, 1, 2, 3), (2,)))


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    write_pair(tmp_path, SENTENCES * 2)
    corpus = json.dumps(f"{tmp_path}/t.en {tmp_path}/t.de")
    path = tmp_path / "r.toml"
    path.write_text(
        f"""
[data]
train = [{corpus}]
dev = {corpus}
[tokenizer]
vocab_size = 120
[model]
d_model = 32
ffn_dim = 48
encoder_layers = 1
decoder_layers = 2
heads = 4
max_positions = 128
[train]
steps = 6
batch_tokens = 512
warmup_steps = 4
[run]
device = "cpu"
save_every = 3
eval_every = 3
eval_sentences = 2
"""
    )
    return path


def hmc(*arguments: str | Path) -> tuple[int, str]:
    result = run_hmc(arguments)
    return result.exit_code, result.output + result.stderr


def test_a_layout_from_a_file_and_from_a_checkpoint(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "layout.json").write_text(json.dumps(LAYOUT.to_json()))
    code, text = hmc("train", recipe, "--out", tmp_path / "a", "--layout", tmp_path / "layout.json")
    assert code == 0, text
    first = load_checkpoint(tmp_path / "a" / "final")
    assert first.layout == LAYOUT
    held = sum(v.size for v in first.tensors.values())
    assert (
        held
        == parameter_count(first.architecture, LAYOUT)
        < parameter_count(first.architecture, first.architecture.full_layout())
    )
    code, text = hmc(
        "train", recipe, "--out", tmp_path / "b", "--layout", tmp_path / "a" / "final", "--headmask", "random:2@cross"
    )
    assert code == 0, text
    second = load_checkpoint(tmp_path / "b" / "final")
    assert second.layout == LAYOUT
    assert second.config.provenance["recipe"]["train"]["headmask"] == "random:2@cross"
    assert any(not np.array_equal(first.tensors[n], second.tensors[n]) for n in first.tensors), "HeadMask was on"


def test_a_run_keeps_its_layout_when_the_file_changes(recipe: Path, tmp_path: Path) -> None:
    file = tmp_path / "layout.json"
    file.write_text(json.dumps(LAYOUT.to_json()))
    arguments = ("train", recipe, "--out", tmp_path / "a", "--layout", file)
    assert hmc(*arguments)[0] == 0
    file.unlink()
    code, text = hmc(*arguments)
    assert code == 0, text
    assert load_checkpoint(tmp_path / "a" / "final").layout == LAYOUT


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ({"encoder_self": [[4]], "decoder_self": [[], []], "cross": [[], [0]]}, "head 4, the architecture has 4"),
        (
            {"encoder_self": [[0], [1]], "decoder_self": [[], []], "cross": [[], [0]]},
            "2 layers, the architecture has 1",
        ),
    ],
)
def test_a_layout_that_does_not_fit_is_refused(
    recipe: Path, tmp_path: Path, layout: dict[str, object], message: str
) -> None:
    (tmp_path / "layout.json").write_text(json.dumps(layout))
    code, text = hmc("train", recipe, "--out", tmp_path / "a", "--layout", tmp_path / "layout.json")
    assert code != 0
    assert message in " ".join(text.split())
