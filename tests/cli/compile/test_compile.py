"""`hmc compile`: what is written, what is refused, and what is left behind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.cli.conftest import Hmc, in_a_process
from tests.command import done, refused
from tests.support.files import bytes_of, write_lines
from tests.tiny import SENTENCES

from hmc.artifact import PRECISIONS, InvalidRequestError, validate
from hmc.artifact.bundle.order import RULE
from hmc.compiler import LevelRequest, compile_bundle


def test_budgets_given(hmc: Hmc, prunable: Path, tmp_path: Path, pairs: tuple[Path, Path]) -> None:
    out = tmp_path / "b"
    ran = done(hmc("compile", prunable, "--target-heads", "24,12", "--eval", *pairs, "--beam", 1, "-o", out))
    lines = ran.stdout.splitlines()
    assert lines[0].startswith(f"{out}: version ")
    assert lines[1].split()[:3] == ["full", "24", "heads"]
    assert "BLEU 100.00 (+0.00)" in lines[1]
    assert lines[2].split()[:3] == ["h12", "12", "heads"]
    default = validate(out).default_level
    assert [line.endswith("default") for line in lines[1:3]] == [default == "full", default == "h12"]
    cost = "by a cost model: no steady time is recorded (`hmc bench --record`)."
    assert lines[3] == f"{default} is the default level, the fastest that {RULE}, {cost}"
    assert [line for line in ran.stderr.splitlines() if line] == ["full", "h12", "validate", "full", "h12"]
    assert validate(out).level("h12").quality is not None


def test_heads_by_share_by_kind_and_by_file(hmc: Hmc, tiny_checkpoint: Path, tmp_path: Path) -> None:
    layout = {"encoder_self": [[0], []], "decoder_self": [[], [1, 3]], "cross": [[2], [0]]}
    (tmp_path / "mine.json").write_text(json.dumps(layout))
    ran = done(hmc(
        "compile", tiny_checkpoint, "--target-heads", "50%;enc=2,dec=5,cross=4", "--layout", tmp_path / "mine.json",
        "--layout", tiny_checkpoint, "--json", "-o", tmp_path / "b",
    ))  # fmt: skip
    levels = {level["name"]: level["head_layout"] for level in json.loads(ran.stdout)["levels"]}
    assert list(levels) == ["h12", "enc2-dec5-cross4", "mine", tiny_checkpoint.name]
    assert levels["mine"] == layout
    heads = {name: [sum(map(len, rows)) for rows in kept.values()] for name, kept in levels.items()}
    assert sum(heads["h12"]) == 12
    assert heads["enc2-dec5-cross4"] == [2, 5, 4]
    assert sum(heads[tiny_checkpoint.name]) == 24


def test_levels_of_several_checkpoints(hmc: Hmc, prunable: Path, tmp_path: Path) -> None:
    other = tmp_path / "a@b"
    other.symlink_to(prunable)
    words = (f"full={prunable}", f"few={prunable}@12", f"half={other}@50%", f"all={other}")
    done(hmc("compile", *words, "-o", tmp_path / "b"))
    heads = {level.name: level.heads for level in validate(tmp_path / "b").levels}
    assert heads == {"full": 24, "few": 12, "half": 12, "all": 24}
    for word, message in (
        (f"few={prunable}@12,6", "with one number of heads"),
        (f"few={prunable}@", "with one number"),
        (f"few={prunable}@x", "x"),
    ):
        refused(hmc("compile", word, "-o", tmp_path / "c"), message)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-bleu-drop", "1"], "--max-bleu-drop needs --eval"),
        (["--max-bleu-drop", "-1", "--eval", "SRC", "REF"], "--max-bleu-drop -1: choose 0 or more"),
        (
            ["--max-latency-ms", "9", "--target-heads", "12", "--eval", "SRC", "REF"],
            "does not work with --target-heads",
        ),
        (["--confidence", "0.9", "--target-heads", "12"], "--confidence needs --max-bleu-drop"),
        (["--max-bleu-drop", "1", "--eval", "SRC", "REF", "--beam", "0"], "--beam 0: choose 1 to"),
        (["--max-bleu-drop", "1", "--eval", "SRC", "missing"], "missing: no such file"),
        (["--precision", "fp64"], f"--precision 'fp64': choose {', '.join(PRECISIONS)}"),
        (
            ["--target-heads", "x"],
            "head budget 'x': 'x' is no whole number and no share; write 72,36 or 50%,25% or enc=",
        ),
        (
            ["--target-heads", "enc=3,dec=9"],
            "--target-heads enc=3,dec=9: 9 heads of decoder_self asked for, this model",
        ),
        (["--layout", "missing"], "head layout missing does not exist"),
        (["--layout", "SRC"], "is not JSON"),
        (["--layout", "DEEP"], "level 'deep': does not fit this checkpoint: head layout encoder_self: 3 layers"),
        (["--layout", "WEIGHTS"], "weights: a bundle has a file or folder called weights"),
        (
            ["--max-latency-ms", "9", "--eval", "SRC", "REF", "--layout", "missing"],
            "--max-latency-ms does not work with --layout",
        ),
        (["--rank-by", "luck", "--target-heads", "12"], "--rank-by luck: choose one of gates, importance, ablation"),
        (["--rank-by", "importance", "--target-heads", "12"], "has no importance to choose heads by"),
        (["--rank-by", "gates"], "--rank-by needs --target-heads or"),
        (["--target-heads", ","], "--target-heads ',' holds no number; write some, e.g. 144,72,36"),
        (["--target-heads", "24,12,25"], "--target-heads 25: this checkpoint has 24 open heads"),
        (["--target-heads", "24,-1"], "--target-heads -1: this checkpoint has 24 open heads; choose 1 to 24"),
        (["--target-heads", "0"], "--target-heads 0: no head of cross-attention would stay open, so the decoder could"),
        (["--target-heads", "12,24,12"], "level 'h12' is requested twice"),
        (["--precision", "fp32,fp32"], "level 'full' is requested twice"),
        (["--precision", "fp32,int8"], "--calibrate: int8 needs real source sentences"),
        (["--precision", "fp32,int8", "--shortlist", "SRC", "REF"], "int8 needs real source sentences"),
        (["--max-bleu-drop", "1", "--precision", "fp32,int8", "--eval", "SRC", "REF"], "--calibrate: int8 needs"),
        (["--eval", "LONG", "REF"], "long: line 2 has 70,000 bytes, and a text may have 65,536; give one sentence"),
        (["--max-bleu-drop", "1", "--eval", "LONG", "LONG"], "long: line 2 has 70,000 bytes"),
        (
            ["--max-bleu-drop", "1", "--confidence", "0.9", "--eval", "FEW", "FEW"],
            "99 sentences are too few to say that a BLEU drop is",
        ),
        (
            ["--precision", "fp16,bf16", "--eval", "SRC", "REF"],
            "levels in fp16, bf16 run on CUDA, and this machine cannot",
        ),
        (["--eval", "SHORT", "SHORT"], "short: 1 sentence pair, and the significance of a BLEU difference needs 2"),
        (["--shortlist", "SRC", "REF"], "--shortlist is for int8 and int4"),
        (["--shortlist", "SRC", "missing", "--precision", "int8"], "missing: no such file"),
        (["--shortlist", "SRC", "SHORT", "--precision", "int8"], "line n of one must translate line n of the other"),
        (["--shortlist", "SRC", "REF", "--shortlist-best", "0", "--precision", "int8"], "best 0: choose 1 or more"),
        (["--shortlist-frequent", "5"], "--shortlist-frequent needs --shortlist"),
        (["--max-bleu-drop", "1", "--eval", "SRC", "REF", "--shortlist", "SRC", "REF"], "is for int8 and int4"),
        (["--precision", "int8", "--eval", "SRC", "REF", "--shortlist", "SRC", "REF"], "learn from other text"),
    ],
)
def test_wrong_words(
    hmc: Hmc, prunable: Path, tmp_path: Path, pairs: tuple[Path, Path], words: list[str], message: str
) -> None:
    (tmp_path / "short").write_text("One line.\n")
    write_lines(tmp_path / "long", [SENTENCES[0], "x" * 70_000, *(SENTENCES * 9)[2:]])
    (tmp_path / "few").write_text("A dog.\n" * 99 + "\n" * 20)
    (tmp_path / "deep").write_text('{"encoder_self": [[], [], []], "decoder_self": [[], []], "cross": [[], []]}')
    (tmp_path / "weights").write_text('{"encoder_self": [[], []], "decoder_self": [[], []], "cross": [[], []]}')
    names = ("short", "long", "few", "deep", "weights")
    files = {"SRC": pairs[0], "REF": pairs[1]} | {name.upper(): tmp_path / name for name in names}
    ran = hmc("compile", prunable, *(str(files.get(word, word)) for word in words), "-o", tmp_path / "b")
    assert ran.exit_code == 2
    assert message in ran.stderr
    assert ran.stderr.count("\n") == 1  # no level was begun
    assert {path.name for path in tmp_path.iterdir()} == set(names)


def test_levels_that_cannot_be_scored_here_are_named(
    hmc: Hmc, prunable: Path, tmp_path: Path, pairs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hmc.engine.runtime.device.cuda_available", lambda: False)
    ran = hmc("compile", prunable, "--precision", "fp32,fp16", "--eval", *pairs, "--beam", 1, "-o", tmp_path / "b")
    assert ran.exit_code == 0, ran.output
    assert "--eval: levels in fp16 run on CUDA, and this machine has none: not scored" in ran.stderr
    assert [level.quality is None for level in validate(tmp_path / "b").levels] == [False, True]


def test_where_the_first_level_cannot_run_here_another_is_the_reference(
    hmc: Hmc, prunable: Path, tmp_path: Path, pairs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hmc.engine.runtime.device.cuda_available", lambda: False)
    words = ["--precision", "fp16,int8", "--calibrate", pairs[0], "--eval", *pairs, "--beam", 1]
    ran = done(hmc("compile", prunable, *words, "-o", tmp_path / "b"))
    assert "--eval: levels in fp16 run on CUDA, and this machine has none: not scored" in ran.stderr
    half, eighth = validate(tmp_path / "b").levels
    assert (half.name, half.quality) == ("full-fp16", None)
    assert eighth.quality is not None
    assert eighth.quality.reference_level == eighth.name == "full-int8"


def test_shortlists_are_scored_beside_their_levels(
    hmc: Hmc, prunable: Path, tmp_path: Path, pairs: tuple[Path, Path]
) -> None:
    out, words = tmp_path / "b", ["--precision", "int8", "--calibrate", pairs[0], "--eval", *pairs, "--beam", 1]
    sizes = ["--shortlist-best", 2, "--shortlist-frequent", 4]
    for side, file in zip(pairs, ("more.en", "more.de"), strict=True):
        (tmp_path / file).write_text(side.read_text() + "A dog sees a cat.\nTwo cats sleep.\n")
    text = (tmp_path / "more.en", tmp_path / "more.de")
    ran = done(hmc("compile", prunable, *words, "--shortlist", *text, *sizes, "-o", out, "--json"))
    known = len(pairs[0].read_text().splitlines())
    assert f"{known} of its pairs are in --eval and are not learnt from" in ran.stderr
    whole, listed = json.loads(ran.stdout)["levels"]
    assert (whole["name"], listed["name"]) == ("full-int8", "full-int8-shortlist")
    assert whole["shortlist"] is None
    assert listed["quality"]["reference_level"] == "full-int8"
    assert (out / listed["shortlist"]).is_file()
    done(hmc("translate", "--bundle", out, "--level", "full-int8-shortlist", "A man is standing on a ladder."))


@pytest.mark.slow
def test_same_input_same_bytes_in_another_process(tiny_checkpoint: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    """Another order of hashes, another folder; and the command writes what the function does."""
    calibration = tmp_path / "calibration.en"
    write_lines(calibration, SENTENCES)
    words: list[str | Path] = [
        "compile",
        tiny_checkpoint,
        "--target-heads",
        "24,12,5",
        "--precision",
        "fp32,int8",
        "--calibrate",
    ]
    ran = in_a_process(1, *words, calibration, "-o", tmp_path / "b")
    _, said = ran.communicate()
    assert ran.returncode == 0, said
    assert bytes_of(tmp_path / "b") == bytes_of(tiny_bundle)


def test_a_bundle_that_cannot_be_scored_stays_as_it_was(
    hmc: Hmc, prunable: Path, tmp_path: Path, pairs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "b"
    assert hmc("compile", prunable, "-o", out).exit_code == 0
    before = bytes_of(out)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hmc.benchmark.measure.quality.translate_all", interrupted)
    words = ["compile", prunable, "--target-heads", "24,12", "--eval", *pairs, "-o", out]
    assert hmc(*words).exit_code == 130
    assert bytes_of(out) == before
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--beam", "3"], "--beam needs --eval"),
        (["--test-set", "x"], "--test-set needs --eval"),
        (["--beam", "0", "--eval", "SRC", "REF"], "--beam 0: choose 1 to 16"),
    ],
)
def test_scoring_options_are_checked_before_the_work(
    hmc: Hmc, prunable: Path, tmp_path: Path, pairs: tuple[Path, Path], words: list[str], said: str
) -> None:
    files = {"SRC": str(pairs[0]), "REF": str(pairs[1])}
    refused(hmc("compile", prunable, *(files.get(word, word) for word in words), "-o", tmp_path / "b"), said)
    assert not (tmp_path / "b").exists()


def test_inputs_in_the_bundle_are_not_deleted(
    hmc: Hmc, prunable: Path, tmp_path: Path, pairs: tuple[Path, Path]
) -> None:
    out = tmp_path / "b"
    assert hmc("compile", prunable, "-o", out).exit_code == 0
    for file, folder in ((pairs[0], out / "data"), (pairs[1], out / "data"), (pairs[0], out / "weights")):
        folder.mkdir(exist_ok=True)
        shutil.copy(file, folder / file.name)
    before, data = bytes_of(out), [out / "data" / file.name for file in pairs]
    words: list[list[str | Path]] = [
        ["--precision", "int8", "--calibrate", data[0]],
        ["--eval", *data],
        ["--max-bleu-drop", "5", "--eval", *data],
        ["--precision", "int8", "--calibrate", pairs[0], "--shortlist", *data],
    ]
    for more in words:
        ran = hmc("compile", prunable, *more, "-o", out)
        assert ran.exit_code == 2
        assert f"{out} would be replaced, and with it the input {data[0]}; choose another" in ran.stderr
    refused(
        hmc("compile", prunable, "-o", out),
        f"{out} holds files that do not belong to a bundle: data/, weights/{pairs[0].name}. It would be dele",
    )
    assert bytes_of(out) == before


def test_a_link_to_a_bundle_is_followed(hmc: Hmc, prunable: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "b")
    for budget in ("24", "12"):
        assert hmc("compile", prunable, "--target-heads", budget, "-o", tmp_path / "link").exit_code == 0
    assert (tmp_path / "link").is_symlink()
    assert [level.heads for level in validate(tmp_path / "b").levels] == [12]
    assert {path.name for path in tmp_path.iterdir()} == {"b", "link"}


@pytest.mark.slow
def test_a_compile_that_was_killed_leaves_nothing_for_long(hmc: Hmc, prunable: Path, tmp_path: Path) -> None:
    ran = in_a_process(0, "compile", prunable, "--target-heads", "24,12,5", "-o", tmp_path / "b")
    assert ran.stderr
    assert ran.stderr.readline() == "full\n"
    ran.kill()
    ran.communicate()
    assert [path.name[:3] for path in tmp_path.iterdir()] == [".b."]
    assert hmc("compile", prunable, "-o", tmp_path / "b").exit_code == 0
    assert list(tmp_path.iterdir()) == [tmp_path / "b"]


@pytest.mark.parametrize("name", ["bundle.json", "weights", "tokenizer.model", "source.spm", "vocab.json"])
def test_names_that_a_bundle_needs_itself(hmc: Hmc, prunable: Path, tmp_path: Path, name: str) -> None:
    ran = hmc("compile", f"a={prunable}", f"{name}={prunable}", "-o", tmp_path / "b")
    assert ran.exit_code == 2
    assert f"a bundle has a file or folder called {name}; choose another name for the level" in ran.stderr
    with pytest.raises(InvalidRequestError, match=f"a level cannot be called {name}"):
        compile_bundle([LevelRequest(prunable, name=name)], tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


def test_a_path_with_an_equals_sign_is_a_path(
    hmc: Hmc, prunable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lr=1").symlink_to(prunable)
    monkeypatch.chdir(tmp_path)
    for number, word in enumerate([tmp_path / "lr=1", "lr=1"]):
        assert hmc("compile", word, "-o", tmp_path / f"b{number}").exit_code == 0
        assert [level.name for level in validate(tmp_path / f"b{number}").levels] == ["full"]
    assert hmc("compile", "a=lr=1", "-o", tmp_path / "named").exit_code == 0
    assert [level.name for level in validate(tmp_path / "named").levels] == ["a"]
    ran = hmc("compile", tmp_path / "lr=2", "-o", tmp_path / "b")
    assert ran.exit_code == 2
    assert f"'{tmp_path}/lr=2' is no path that exists, and NAME=CHECKPOINT: a level's name has" in ran.stderr


@pytest.mark.parametrize("name", ["", "a/b", ".hidden", "a b"])
def test_level_names(hmc: Hmc, prunable: Path, tmp_path: Path, name: str) -> None:
    refused(hmc("compile", f"{name}={prunable}", "-o", tmp_path / "b"), "a level's name has letters, digits")
    assert not (tmp_path / "b").exists()
