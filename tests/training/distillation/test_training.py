"""`hmc train` with a teacher: a recipe names it, and an interrupted run resumes exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.updates import interrupted
from tests.tiny import tiny_checkpoint_at

from hmc.artifact import Checkpoint, InvalidRequestError, load_checkpoint
from hmc.training import Recipe, train


def recipe(folder: Path, **distill: Any) -> Recipe:
    """The teacher `c` has other widths than the student."""
    corpus = f"{folder}/t.en {folder}/t.de"
    shape = {"d_model": 16, "ffn_dim": 24, "encoder_layers": 1, "decoder_layers": 1, "heads": 2, "max_positions": 128}
    return Recipe.model_validate(
        {
            "data": {"train": [corpus], "dev": corpus, "max_length": 90},
            "tokenizer": {"model": str(folder / "c")},
            "model": shape,
            "train": {"steps": 8, "batch_tokens": 512, "warmup_steps": 4, "dropout": 0.2, "headmask": "random:1"},
            "distill": distill,
            "run": {"device": "cpu", "save_every": 3, "eval_every": 8, "eval_sentences": 1},
        }
    )


def taught(folder: Path, out: Path, **distill: Any) -> Checkpoint:
    chosen: dict[str, Any] = {"weight": 0.8, "temperature": 2.0, "teacher": str(folder / "c")}
    return load_checkpoint(train(recipe(folder, **chosen | distill), out))


def test_the_teacher_changes_what_is_learned_and_an_interrupted_run_resumes(folder: Path, tmp_path: Path) -> None:
    whole, alone = taught(folder, tmp_path / "whole"), load_checkpoint(train(recipe(folder), tmp_path / "alone"))
    assert not np.array_equal(whole.tensors["shared.weight"], alone.tensors["shared.weight"])
    with interrupted(6):
        taught(folder, tmp_path / "p")
    resumed = taught(folder, tmp_path / "p")
    assert all(np.array_equal(whole.tensors[name], resumed.tensors[name]) for name in whole.tensors)


def test_a_run_belongs_to_one_teacher(folder: Path, tmp_path: Path) -> None:
    tiny_checkpoint_at(tmp_path / "t")
    taught(folder, tmp_path / "p", teacher=str(tmp_path / "t"))
    with pytest.raises(InvalidRequestError, match="another recipe"):
        taught(folder, tmp_path / "p", weight=0.5, teacher=str(tmp_path / "t"))
    tiny_checkpoint_at(tmp_path / "t", seed=4)
    with pytest.raises(InvalidRequestError, match="the teacher is not the one"):
        taught(folder, tmp_path / "p", teacher=str(tmp_path / "t"))


def test_a_run_from_random_weights_has_to_name_its_teacher(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"set distill\.teacher or model\.start_from"):
        taught(folder, tmp_path / "p", teacher=None)
