"""Lexicons: which tokens are candidates of a sentence, the file, and what is refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from tests.tiny import tiny_architecture

from hmc.artifact import InvalidArtifactError
from hmc.artifact.bundle.shortlist import Lexicon

V = 10
ARCH = tiny_architecture(vocab_size=V)  # EOS 0, unk 1, pad 2


def lexicon(always: list[int], translations: dict[int, list[int]]) -> Lexicon:
    """A lexicon of V tokens."""
    rows = [translations.get(token, []) for token in range(V)]
    starts = np.cumsum([0, *map(len, rows)])
    targets = np.array([target for row in rows for target in row], np.int32)
    return Lexicon(np.array(always, np.int32), starts.astype(np.int64), targets, ARCH.pad_id)


USUAL = lexicon([0, 1, 7], {3: [9, 4], 5: [7, 8, 4]})


@pytest.mark.parametrize(
    ("source", "also", "expected"),
    [
        ([], [], [0, 1, 7]),
        ([3], [], [0, 1, 3, 4, 7, 9]),
        ([3, 5, 3, 0], [], [0, 1, 3, 4, 5, 7, 8, 9]),
        ([6], [], [0, 1, 6, 7]),
        ([6], [8, 8], [0, 1, 6, 7, 8]),
        ([2, 6], [2], [0, 1, 6, 7]),
    ],
    ids=["nothing", "one-word", "repeated", "never-translated", "prefix", "padding"],
)
def test_candidates(source: list[int], also: list[int], expected: list[int]) -> None:
    found = USUAL.candidates(source, also)
    assert found.tolist() == expected
    assert found.dtype == np.int64


tokens = st.integers(0, V - 1)
words = tokens.filter(lambda token: token != ARCH.pad_id)


@given(
    always=st.sets(words).map(lambda ids: sorted(ids | {0, 1})),
    translations=st.dictionaries(tokens, st.lists(words, unique=True)),
    source=st.lists(tokens),
    also=st.lists(tokens),
)
def test_candidates_are_exactly_what_was_asked_for(
    always: list[int], translations: dict[int, list[int]], source: list[int], also: list[int]
) -> None:
    found = lexicon(always, translations).candidates(source, also).tolist()
    wanted = {*always, *source, *also, *(target for token in source for target in translations.get(token, []))}
    assert found == sorted(wanted - {ARCH.pad_id})


def test_round_trip(tmp_path: Path) -> None:
    USUAL.save(tmp_path / "lexicon.safetensors")
    read = Lexicon.load(tmp_path / "lexicon.safetensors", ARCH)
    for name in ("always", "starts", "targets"):
        kept, found = getattr(USUAL, name), getattr(read, name)
        assert found.dtype == kept.dtype
        assert found.tolist() == kept.tolist()
    assert (read.pad_id, read.vocab_size) == (ARCH.pad_id, V)
    assert read.problems(ARCH) == []


def test_a_lexicon_without_translations_is_one(tmp_path: Path) -> None:
    lexicon([0, 1], {}).save(tmp_path / "empty")
    assert Lexicon.load(tmp_path / "empty", ARCH).candidates([4]).tolist() == [0, 1, 4]


def test_every_process_writes_the_same_bytes(tmp_path: Path) -> None:
    USUAL.save(tmp_path / "here")
    program = """
import sys
from hmc.artifact.bundle.shortlist import Lexicon
from tests.tiny import tiny_architecture
Lexicon.load(sys.argv[1], tiny_architecture(vocab_size=10)).save(sys.argv[2])
"""
    for number in range(3):
        command = [sys.executable, "-c", program, str(tmp_path / "here"), str(tmp_path / f"{number}")]
        subprocess.run(command, check=True, cwd=Path(__file__).parents[3])
        assert (tmp_path / f"{number}").read_bytes() == (tmp_path / "here").read_bytes()


def changed(**arrays: Any) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    """Replaces arrays of the file; None removes one."""

    def change(found: dict[str, Any], header: dict[str, Any]) -> None:
        found |= arrays
        for name in [name for name, array in found.items() if array is None]:
            del found[name]

    return change


def header_with(**values: Any) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    def change(found: dict[str, Any], header: dict[str, Any]) -> None:
        header |= values

    return change


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (changed(always=None), ["tensor always is missing"]),
        (changed(stray=ids(1)), ["tensor stray does not belong in a lexicon"]),
        (changed(targets=USUAL.targets.astype(np.int64)), [r"tensor targets is int64 \[5\], expected a list of int32"]),
        (changed(always=ids(0, 1)[None]), [r"tensor always is int32 \[1, 2\], expected a list of int32"]),
        (changed(starts=np.zeros(0, np.int64)), ["tensor starts is empty"]),
        (changed(starts=USUAL.starts[::-1].copy()), ["tensor starts must rise from 0 to 5"]),
        (changed(starts=USUAL.starts + 1), ["tensor starts must rise from 0 to 5"]),
        (changed(targets=USUAL.targets[:-1]), ["tensor starts must rise from 0 to 4"]),
        (changed(targets=ids(9, 4, 10, 8, -1)), ["tensor targets has 2 token ids outside 0 to 9"]),
        (changed(always=ids(0, 1, 99)), ["tensor always has 1 token ids outside 0 to 9"]),
        (changed(always=ids(1, 0, 7)), ["tensor always is not in ascending order"]),
        (changed(always=ids(0, 1, 7, 7)), ["tensor always is not in ascending order, each token once"]),
        (changed(always=ids(0, 1, 2)), ["tensor always has the padding token 2"]),
        (changed(targets=ids(9, 4, 7, 2, 4)), ["tensor targets has the padding token 2"]),
        (changed(always=ids(7)), ["lacks the end-of-sentence token 0", "lacks the unknown token 1"]),
        (changed(always=ids(1, 0, 2), targets=ids(9, 4, 7, 8, 44)), ["ascending", "padding token 2", "1 token ids"]),
        (changed(always=None, targets=None), ["tensor always is missing", "tensor targets is missing"]),
        (header_with(vocab_size=11), ["its header names 11 tokens, it has 10"]),
        (header_with(vocab_size=None, pad_id="2"), ["no whole number 'pad_id'", "no whole number 'vocab_size'"]),
        (header_with(pad_id=3), ["its pad_id is 3, the model's is 2"]),
        (header_with(schema_version=99), ["schema version 99; this hmc reads version 1: upgrade hmc"]),
    ],
)
def test_every_problem_of_a_damaged_file_is_listed(
    tmp_path: Path, change: Callable[[dict[str, Any], dict[str, Any]], None], expected: list[str]
) -> None:
    file = tmp_path / "lexicon.safetensors"
    USUAL.save(file)
    with safe_open(file, framework="numpy") as handle:
        header = json.loads(handle.metadata()["lexicon"])
    found: dict[str, Any] = load_file(file)
    change(found, header)
    save_file(found, file, {"lexicon": json.dumps(header)})
    with pytest.raises(InvalidArtifactError) as refused:
        Lexicon.load(file, ARCH)
    problems = refused.value.problems
    assert len(problems) == len(expected), problems
    assert all(any(re.search(pattern, problem) for problem in problems) for pattern in expected), problems


@pytest.mark.parametrize("metadata", [None, {}, {"lexicon": "{"}, {"lexicon": "[1]"}, {"lexicon": "{}"}])
def test_a_file_that_does_not_say_what_it_is(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    USUAL.save(tmp_path / "lexicon")
    save_file(load_file(tmp_path / "lexicon"), tmp_path / "lexicon", metadata)
    with pytest.raises(InvalidArtifactError, match=r"no 'lexicon' entry|schema version None"):
        Lexicon.load(tmp_path / "lexicon", ARCH)


def test_a_file_cut_short_or_missing_is_a_clear_error(tmp_path: Path) -> None:
    file = tmp_path / "lexicon.safetensors"
    with pytest.raises(InvalidArtifactError, match=r"lexicon\.safetensors is not readable"):
        Lexicon.load(file, ARCH)
    USUAL.save(file)
    whole = file.read_bytes()
    for kept in (0, 7, 40, len(whole) - 1):
        file.write_bytes(whole[:kept])
        with pytest.raises(InvalidArtifactError, match=r"lexicon\.safetensors is not readable"):
            Lexicon.load(file, ARCH)


def test_another_models_lexicon_is_refused(tmp_path: Path) -> None:
    USUAL.save(tmp_path / "lexicon")
    with pytest.raises(InvalidArtifactError, match=r"vocabulary of 10 tokens, the model has 120"):
        Lexicon.load(tmp_path / "lexicon", tiny_architecture())
    with pytest.raises(InvalidArtifactError, match=r"pad_id is 2, the model's is 3"):
        Lexicon.load(tmp_path / "lexicon", tiny_architecture(vocab_size=V, pad_id=3))


def test_problems_of_a_lexicon_in_memory() -> None:
    assert replace(USUAL, targets=USUAL.targets.astype(np.int64)).problems(ARCH) == [
        "tensor targets is int64 [5], expected a list of int32"
    ]
