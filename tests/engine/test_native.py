"""The native executor itself: its builds, its search, batches that change, and what it refuses.

That its steps have the reference's bits is checked in `test_reference.py`, for every form of a model.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from tests.engine.test_reference import SOURCES, reference, tiny
from tests.once import Once
from tests.processes import environment

from hmc.compiler.calibration.calibrate import calibrate
from hmc.compiler.precisions.int8 import Int8Linears
from hmc.compiler.precisions.linears import FloatLinears
from hmc.engine.arithmetic import exp
from hmc.engine.choosing import best_tokens, log_sum_exp
from hmc.engine.decoding.state import Rules
from hmc.engine.native import library
from hmc.engine.native.build import BUILDS, HERE, build_one, compiler, library_name, machine
from hmc.engine.native.level import NativeBatch, NativeLevel, _check
from hmc.engine.reference import OwnCaches, ReferenceLevel

CALIBRATION = [[5, 9, 40, 7, 0], [11, 12, 60, 0], [90, 3, 61, 17, 28, 99, 0]]
LISTS = [np.arange(0, 100, 2), np.array([0, 1, 2, 5, 40]), np.unique([0, *range(3, 101, 3), *range(50, 60)])]
"""Tokens of each of SOURCES: fewer than a block, several blocks, and blocks that are not full."""
needs_compiler = pytest.mark.skipif(compiler() is None, reason="there is no C compiler")
needs_library = pytest.mark.skipif(
    machine() not in BUILDS or sys.platform != "linux", reason="there is no native executor for this machine"
)


@pytest.fixture(scope="module")
def level() -> ReferenceLevel:
    """A level in int8, whose lists of values and of operations are those of the native one."""
    model = tiny()
    return reference(model, Int8Linears(calibrate(model, CALIBRATION).ranges))


@pytest.fixture(scope="module")
def native(level: ReferenceLevel) -> NativeLevel:
    best = library.best()
    assert best is not None, "build it: python engine/hmc/engine/native/build.py"
    return NativeLevel(best, level.program, level.arch, level.tensors)


@pytest.fixture(scope="module")
def in_blocks(level: ReferenceLevel) -> ReferenceLevel:
    """The level with blocks of 16 tokens, so that the lists of few tokens have several."""
    last = level.candidates.model_copy(update={"block": 16})
    program = level.program.model_copy(update={"step": (*level.program.step[:-1], last)})
    return ReferenceLevel(program, level.arch, level.tensors)


@pytest.fixture(scope="module")
def listed(in_blocks: ReferenceLevel) -> NativeLevel:
    best = library.best()
    assert best is not None
    return NativeLevel(best, in_blocks.program, in_blocks.arch, in_blocks.tensors, listed=True)


class Found(NamedTuple):
    """A hypothesis whose search has ended."""

    rank: float
    complete: int
    tokens: tuple[int, ...]
    scores: tuple[float, ...]


def collected(batch: NativeBatch, hypotheses: int) -> dict[int, list[Found]]:
    """Place in the batch before the run → what the sentence has found, which has ended; the list is empty where the
    search failed."""
    ended = batch.collect(hypotheses)
    found: dict[int, list[Found]] = {}
    last = 0
    for entry, length in enumerate(ended.lengths):
        of_sentence = found.setdefault(ended.places[entry // hypotheses], [])
        first = last
        last += length
        if length and not ended.failed[entry // hypotheses]:
            parts = ended.tokens[first:last], ended.scores[first:last]
            of_sentence.append(Found(ended.ranks[entry], ended.complete[entry], *parts))
    assert last == len(ended.tokens) == len(ended.scores)
    return found


def searched(
    level: NativeLevel,
    sources: list[list[int]],
    rows: int,
    rule: Rules,
    threads: int = 1,
    lists: Sequence[np.ndarray] = (),
    held: int = 0,
) -> list[list[Found]]:
    """What each sentence finds in a batch with the others, which leave when they have ended. held: steps that the
    others go on meanwhile."""
    batch = NativeBatch(level, rows, threads)
    batch.admit(sources, [rule] * len(sources), lists)
    names, found = list(range(len(sources))), {}
    while names:
        batch.run(100, held, many=len(sources))
        ended = collected(batch, rows)
        found.update({names[place]: hypotheses for place, hypotheses in ended.items()})
        names = [name for place, name in enumerate(names) if place not in ended]
    assert batch.count == 0
    return [found[name] for name in range(len(sources))]


# ---- builds ----


def _plain_at(path: Path) -> None:
    """The build that needs no instruction set beyond the machine's usual one, with warnings as errors."""
    command = compiler()
    assert command is not None
    path.mkdir()
    build_one(path / "plain.so", command, ["-Werror", "-O1"])


@needs_library
@needs_compiler
def test_the_library_is_that_of_the_sources(tmp_path: Path) -> None:
    """Where this fails: python engine/hmc/engine/native/build.py. The same sources give the same bytes."""
    command = compiler()
    assert command is not None
    name = next(iter(BUILDS[machine()]))
    build_one(tmp_path / "again.so", command, BUILDS[machine()][name])
    assert (tmp_path / "again.so").read_bytes() == (library.FOLDER / library_name(name)).read_bytes()


@needs_library
@needs_compiler
def test_builds_have_the_same_bits(
    level: ReferenceLevel, in_blocks: ReferenceLevel, native: NativeLevel, listed: NativeLevel, once: Once
) -> None:
    other, rule = library.load(once(_plain_at) / "plain.so"), Rules(12, length_penalty=0.7)
    plain = NativeLevel(other, level.program, level.arch, level.tensors)
    plain_listed = NativeLevel(other, in_blocks.program, level.arch, level.tensors, listed=True)
    for rows in (1, 3):
        assert searched(plain, SOURCES, rows, rule) == searched(native, SOURCES, rows, rule)
        ours = searched(listed, SOURCES, rows, rule, lists=LISTS)
        assert searched(plain_listed, SOURCES, rows, rule, lists=LISTS) == ours


@needs_compiler
def test_under_sanitizers(tmp_path: Path) -> None:
    """Reads and writes beyond memory, and undefined behaviour, end the process."""
    command = compiler()
    assert command is not None
    build_one(tmp_path / "checked.so", command, ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover"])
    preloaded = subprocess.run([*command, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    if not Path(preloaded.stdout.strip()).is_absolute():
        pytest.skip("this compiler has no library of the address sanitizer")
    ran = subprocess.run(
        [sys.executable, "-m", "tests.engine.under_sanitizers", str(tmp_path / "checked.so")],
        env=environment(LD_PRELOAD=preloaded.stdout.strip(), ASAN_OPTIONS="detect_leaks=0"),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "done\n"


def test_a_library_of_another_interface_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if library.best() is None:
        pytest.skip("there is no native executor for this machine")
    monkeypatch.setattr(library, "INTERFACE", library.INTERFACE + 1)
    path = next(library.FOLDER.glob(library_name("*")))
    with pytest.raises(OSError, match=f"has interface {library.INTERFACE - 1}, not {library.INTERFACE}"):
        library.load(path)


# ---- search ----


@needs_library
@pytest.mark.parametrize("with_lists", [False, True])
def test_greedy_search_takes_the_best_tokens(
    level: ReferenceLevel, in_blocks: ReferenceLevel, native: NativeLevel, listed: NativeLevel, with_lists: bool
) -> None:
    if with_lists:
        level = in_blocks
        answers = searched(listed, SOURCES, 1, Rules(10), lists=LISTS)
    else:
        answers = searched(native, SOURCES, 1, Rules(10))
    for source, tokens_of, found in zip(SOURCES, LISTS, answers, strict=True):
        ids = tokens_of if with_lists else np.arange(level.arch.vocab_size)
        encoded = level.encode(source, tokens_of if with_lists else None)
        own, tokens = OwnCaches(), [level.arch.decoder_start]
        total, scores = 0.0, []
        while len(tokens) <= 10 and (len(tokens) == 1 or tokens[-1] != level.arch.eos_id):
            logits = level.step(np.array(tokens[-1:]), np.array([len(tokens) - 1]), own, [encoded]).logits
            best = [place for place in best_tokens(logits, 3)[0].tolist() if ids[place] != level.arch.pad_id]
            score = logits[0, best[0]] - log_sum_exp(logits, level.candidates.block)[0]
            scores.append(score)
            total += float(score)
            tokens.append(int(ids[best[0]]))
        ended = tokens[-1] == level.arch.eos_id
        assert found == [(total / (len(tokens) - 1), int(ended), tuple(tokens[1:]), tuple(scores))]


@needs_library
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("threads", [1, 3])
def test_lists_have_the_bits_of_the_reference(in_blocks: ReferenceLevel, rows: int, threads: int) -> None:
    """Of sentences with different lists in one batch, in int8 and in fp32."""
    best = library.best()
    assert best is not None
    for level in (in_blocks, reference(tiny(), FloatLinears())):
        native = NativeLevel(best, level.program, level.arch, level.tensors, listed=True)
        batch, own = NativeBatch(native, rows, threads), OwnCaches()
        batch.admit(SOURCES, [Rules(12)] * len(SOURCES), LISTS)
        encoded = [level.encode(*pair) for pair in zip(SOURCES, LISTS, strict=True) for _ in range(rows)]
        for position, token in enumerate((level.arch.decoder_start, 7, 50)):
            tokens = np.arange(len(encoded)) + token if position else np.full(len(encoded), token)
            expected = level.step(tokens, np.full(len(encoded), position), own, encoded).logits
            assert expected.shape == (len(encoded), max(map(len, LISTS)))
            np.testing.assert_array_equal(batch.step(tokens)[0], expected)


@needs_library
@pytest.mark.parametrize("rows", [1, 4])
def test_a_list_does_not_depend_on_others(listed: NativeLevel, rows: int) -> None:
    """Beside sentences with other lists, that leave one after the other, and with any number of threads."""
    rule = Rules(14, min_length=3)
    pairs = list(zip(SOURCES, LISTS, strict=True))
    alone = [searched(listed, [source], rows, rule, lists=[tokens])[0] for source, tokens in pairs]
    for threads in (1, 2):
        assert searched(listed, SOURCES, rows, rule, threads, LISTS) == alone
    for found, tokens in zip(alone, LISTS, strict=True):
        assert {token for each in found for token in each.tokens} <= set(tokens.tolist())


@needs_library
@pytest.mark.parametrize("rows", [1, 4, 16])
def test_a_sentence_does_not_depend_on_its_batch(native: NativeLevel, rows: int) -> None:
    """Alone, among others, and among some that join, are dropped and end at other times."""
    rule = Rules(14, min_length=3, length_penalty=0.8)
    rng = np.random.default_rng(rows)
    sources = [[*rng.integers(3, 100, rng.integers(1, 12)).tolist(), 0] for _ in range(12)]
    alone = [searched(native, [source], rows, rule)[0] for source in sources]
    for held in (0, 2, 100):
        assert searched(native, sources, rows, rule, held=held) == alone
    batch, names, found, left = NativeBatch(native, rows), list[int](), dict[int, list[Found]](), list(range(12))
    while names or left:
        new = left[: int(rng.integers(0, 4)) or (0 if names else 1)]
        left = left[len(new) :]
        if new:
            batch.admit([sources[name] for name in new], [rule] * len(new))
            names += new
        batch.run(int(rng.integers(1, 4)), int(rng.integers(0, 3)), int(rng.integers(1, 4)))
        ended = collected(batch, rows)
        found.update({names[place]: hypotheses for place, hypotheses in ended.items()})
        names = [name for place, name in enumerate(names) if place not in ended]
        stay = [int(at) for at in rng.permutation(len(names)) if names[at] != 5]  # one is dropped
        batch.keep(stay)
        names = [names[at] for at in stay]
    for name, hypotheses in found.items():
        assert hypotheses == alone[name]
    assert len(found) >= 11


@needs_library
@pytest.mark.parametrize("threads", [2, 5])
def test_threads_change_no_bit(native: NativeLevel, threads: int) -> None:
    """Also where there are more of them than columns, rows and heads to divide."""
    sources = SOURCES * 8
    for rows in (1, 4):
        one = searched(native, sources, rows, Rules(12))
        assert searched(native, sources, rows, Rules(12), threads) == one
        batches = NativeBatch(native, rows), NativeBatch(native, rows, threads)
        for batch in batches:
            batch.admit(sources, [Rules(12)] * len(sources))
        for token in range(3, 8):
            found = [batch.step(np.full(rows * len(sources), token), attention=True) for batch in batches]
            np.testing.assert_array_equal(found[0][0], found[1][0])
            for ours, theirs in zip(found[0][1], found[1][1], strict=True):
                np.testing.assert_array_equal(ours, theirs)


@needs_library
def test_limits_and_patience(native: NativeLevel) -> None:
    (short,) = searched(native, SOURCES[:1], 2, Rules(1))
    assert [len(each.tokens) for each in short] == [1, 1]
    (longer,) = searched(native, SOURCES[:1], 2, Rules(12, min_length=12))
    assert {len(each.tokens) for each in longer} == {12}
    batch = NativeBatch(native, 2)
    batch.admit(SOURCES[:1], [Rules(30, enough=5)])
    steps = batch.run(100)
    ranks = [each.rank for each in collected(batch, 5)[0]]
    assert ranks == sorted(ranks, reverse=True)
    assert len(ranks) == 5 or steps == 30


@needs_library
def test_others_go_on_while_what_has_ended_is_kept(native: NativeLevel) -> None:
    """For so many steps, or until so many have ended."""
    rules = [Rules(limit, min_length=limit) for limit in (9, 3, 9, 4, 6)]
    for held, many, steps, places in (
        (0, 9, 3, [1]), (1, 9, 4, [1, 3]), (2, 9, 5, [1, 3]), (9, 2, 4, [1, 3]), (9, 9, 9, [1, 3, 4, 0, 2]),
    ):  # fmt: skip
        batch = NativeBatch(native, 1)
        batch.admit([SOURCES[0]] * 5, rules)
        assert batch.run(100, held, many) == steps
        assert batch.ended == len(places)
        with pytest.raises(ValueError, match="cannot run"):
            batch.run(1)
        with pytest.raises(ValueError, match="cannot keep"):
            batch.keep([0])
        assert list(collected(batch, 1)) == places
        assert (batch.count, batch.ended) == (5 - len(places), 0)
        if batch.count:
            batch.run(100, 100, 100)
            assert len(collected(batch, 1)) == 5 - len(places)


@needs_library
def test_numbers_that_are_none_fail_their_sentence_alone(level: ReferenceLevel) -> None:
    best = library.best()
    assert best is not None
    tensors = dict(level.tensors)
    tensors["positions"] = tensors["positions"].copy()
    tensors["positions"][3] = np.nan  # every target fails at its fourth token
    broken = NativeLevel(best, level.program, level.arch, tensors)
    batch = NativeBatch(broken, 2)
    batch.admit([[11, 0], [12, 0]], [Rules(10, min_length=9), Rules(2)])
    batch.run(100)
    (found,) = collected(batch, 2).values()
    assert len(found) == 2
    batch.run(100)
    assert batch.collect(2).failed == [1]


@needs_library
@pytest.mark.parametrize("width", [1, 7, 16, 100, 1000])
def test_ranks_have_the_bits_of_the_reference(in_blocks: ReferenceLevel, listed: NativeLevel, width: int) -> None:
    """Of logits that are equal, that no token has, and that are no numbers."""
    rng = np.random.default_rng(width)
    logits = (np.round(rng.normal(0, 4, (9, width)) * 4) / 4).astype(np.float32)
    logits[1] = -np.inf
    logits[2, 1:] = -np.inf
    logits[3] = 2.5
    block = in_blocks.candidates.block
    for count in {1, min(5, width), width}:
        best, sums = listed.rank(logits, count)
        np.testing.assert_array_equal(best, best_tokens(logits, count))
        np.testing.assert_array_equal(sums, log_sum_exp(logits, block))
    logits[4, width // 2] = np.nan
    assert np.isnan(listed.rank(logits, 1)[1]).tolist() == [row == 4 for row in range(9)]
    values = np.append(logits.ravel(), [-200, 88, -87.5, np.inf]).astype(np.float32)
    np.testing.assert_array_equal(listed.exp(values), exp(values))
    with pytest.raises(ValueError, match="cannot rank"):
        listed.rank(logits, width + 1)


# ---- refused ----


@needs_library
def test_arguments_that_would_read_elsewhere_are_refused(native: NativeLevel) -> None:
    for rows, threads in ((17, 1), (0, 1), (1, 0), (1, 65)):
        with pytest.raises(ValueError, match="cannot open a batch"):
            NativeBatch(native, rows, threads)
    batch, last = NativeBatch(native, 2), native.arch.max_positions - 1
    for source, rule in (
        ([], Rules(5)),
        ([native.arch.source_size], Rules(5)),
        ([-1, 0], Rules(5)),
        ([5] * (native.arch.max_positions + 1), Rules(5)),
        ([5, 0], Rules(0)),
        ([5, 0], Rules(last + 1)),
        ([5, 0], Rules(5, enough=-1)),
    ):
        with pytest.raises(ValueError, match="cannot admit sentences"):
            batch.admit([[5, 0], source], [Rules(5), rule])
    with pytest.raises(ValueError, match="cannot run"):
        batch.run(1)
    batch.admit(SOURCES, [Rules(1)] * 3)
    for order in ([0, 0], [3], [-1], [0, 1, 2, 0]):
        with pytest.raises(ValueError, match="cannot keep"):
            batch.keep(order)
    for parents in ([0, 2, 2, 3, 4, 5], [-1, 0, 2, 2, 4, 4]):
        with pytest.raises(ValueError, match="cannot reorder"):
            batch.reorder(np.array(parents))
    with pytest.raises(ValueError, match=r"tokens \(5,\): one for each of 6 rows"):
        batch.step(np.zeros(5))
    for token in (-1, native.arch.vocab_size):
        with pytest.raises(ValueError, match="cannot step"):
            batch.step(np.array([0, 0, 0, token, 0, 0]))
    assert batch.run(9) == 1
    with pytest.raises(ValueError, match="cannot run"):
        batch.run(1)  # what has ended is collected before
    batch._ended[1] = 0
    with pytest.raises(ValueError, match="cannot collect"):
        batch.collect(2)  # no room for the tokens that they have
    batch._ended[1] = 1
    assert len(batch.collect(2).places) == 3
    batch.admit(SOURCES, [Rules(5)] * 3)
    for steps, held, many in ((0, 0, 1), (1, -1, 1), (1, 0, 0)):
        with pytest.raises(ValueError, match="cannot run"):
            batch.run(steps, held, many)
    batch.sources = [1, 1, 1]  # attention has no room for longer sources
    with pytest.raises(ValueError, match="cannot step"):
        batch.step(np.zeros(6), attention=True)
    batch.close()
    for use in (
        lambda: batch.run(1), lambda: batch.keep([]), lambda: batch.admit([[5, 0]], [Rules(5)]),
        lambda: batch.collect(1), lambda: batch.reorder(np.zeros(6)), lambda: batch.step(np.zeros(6)),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="native executor: cannot"):
            use()


@needs_library
def test_lists_that_are_none_are_refused(native: NativeLevel, listed: NativeLevel) -> None:
    batch = NativeBatch(listed, 2)
    for wrong in ([], [5, 4], [5, 5], [-1, 5], [5, listed.arch.vocab_size]):
        with pytest.raises(ValueError, match="cannot admit sentences"):
            batch.admit(SOURCES[:2], [Rules(5)] * 2, [LISTS[0], np.array(wrong, np.int64)])
    with pytest.raises(ValueError, match="1 lists for 2 sentences"):
        batch.admit(SOURCES[:2], [Rules(5)] * 2, LISTS[:1])
    with pytest.raises(ValueError, match="cannot admit sentences"):
        batch.admit(SOURCES[:1], [Rules(5)])
    with pytest.raises(ValueError, match="cannot admit sentences"):
        NativeBatch(native, 2).admit(SOURCES[:1], [Rules(5)], LISTS[:1])
    batch.admit(SOURCES, [Rules(5)] * 3, LISTS)
    for width in (len(LISTS[0]) - 1, 10**9):  # logits have no room for the list, or ask for more than there can be
        with pytest.raises(ValueError, match="cannot step"):
            _step_of_width(batch, width)


def _step_of_width(batch: NativeBatch, width: int) -> None:
    """A step as `NativeBatch.step` asks for it, with logits of any width."""
    tokens, logits = np.zeros(6, np.int32), np.empty((6, 100), np.float32)
    arguments = tokens.ctypes.data, logits.ctypes.data, width, None, 0
    _check(batch.level.library.hmc_step(batch._handle, *arguments), "step")


@needs_library
@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (0, "output", 99),
        (0, "table", None),
        (1, "input", 99),
        (1, "outputs", 7),
        (1, "activation", 9),
        (2, "heads", 0),
        (3, "plane", 5),
        (4, "width", 300),
        (4, "output", -1),
        (5, "plane", -1),
        (6, "block", 17),
        (6, "inputs", 5),
        (9, "kind", 7),
    ],
)
def test_programs_that_do_not_hold_are_refused(
    level: ReferenceLevel, monkeypatch: pytest.MonkeyPatch, kind: int, field: str, value: int | None
) -> None:
    """Each field is checked in C too: whatever Python gives, no memory but the level's is read."""
    best = library.best()
    assert best is not None
    opened = best.hmc_open

    def changed(program: ctypes._Pointer[library.ProgramStruct], handle: object) -> int:
        struct = program._obj  # type: ignore[attr-defined]
        lists = (
            [struct.encode[i] for i in range(struct.encode_count)],
            [struct.step[i] for i in range(struct.step_count)],
        )
        operation = next(each for each in (*lists[0], *lists[1]) if kind in (each.kind, 9))
        setattr(operation, field, value)
        return int(opened(program, handle))

    monkeypatch.setattr(best, "hmc_open", changed)
    with pytest.raises(ValueError, match="cannot open the level"):
        NativeLevel(best, level.program, level.arch, level.tensors)


def test_the_sources_are_in_the_package() -> None:
    assert {path.suffix for path in (HERE / "src").iterdir()} == {".c", ".h"}
    assert os.path.commonpath([HERE, library.FOLDER]) == str(HERE)
