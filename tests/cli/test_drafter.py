"""`hmc compile --drafter`, and the commands that use what it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Hmc
from tests.tiny import SENTENCES, tiny_architecture, tiny_checkpoint_at

from hmc.artifact.bundle import read_manifest
from hmc.artifact.bundle_checks import bundle_problems, validate

SMALL = {"d_model": 16, "decoder_layers": 1, "heads": 1}


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("drafter") / "checkpoint"
    tiny_checkpoint_at(path, seed=8, arch=tiny_architecture(**SMALL))
    return path


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "tiny.en"
    path.write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    return path


def test_a_bundle_with_a_drafter(hmc: Hmc, tiny_checkpoint: Path, drafter: Path, text: Path, tmp_path: Path) -> None:
    out, same = tmp_path / "b", tmp_path / "same"
    settings = ["--target-heads", "24,12", "--precision", "int8,fp32", "--calibrate", text]
    ended = hmc("compile", tiny_checkpoint, "-o", out, *settings, "--drafter", drafter)
    assert ended.exit_code == 0, ended.stderr
    assert "guesses for the levels" in ended.stdout
    manifest = validate(out)
    assert manifest.drafter
    assert manifest.drafter.level.precision == "int8"
    assert manifest.drafter.architecture.decoder_layers == 1
    assert [level.name for level in manifest.levels] == ["full-int8", "full", "h12-int8", "h12"]
    hmc("compile", tiny_checkpoint, "-o", same, *settings)
    assert read_manifest(same).version != manifest.version
    for options in ([], ["--precision", "int4"]):  # what there is of a drafter may be replaced, and goes with the rest
        again = hmc("compile", tiny_checkpoint, "-o", out, "--calibrate", text, *options)
        assert again.exit_code == 0, again.stderr
        assert not (out / "drafter").exists()
        assert validate(out).drafter is None


def test_translations_stay_the_same(hmc: Hmc, tiny_checkpoint: Path, drafter: Path, text: Path, tmp_path: Path) -> None:
    written = []
    for name, options in (("with", ["--drafter", drafter]), ("without", [])):
        ended = hmc("compile", tiny_checkpoint, "-o", tmp_path / name, *options)
        assert ended.exit_code == 0, ended.stderr
        for extra in ([], ["--incremental"]):
            place = ["--bundle", tmp_path / name, "--beam", "1", "--max-length", "20", *extra]
            written.append([hmc("translate", *place, sentence).stdout for sentence in SENTENCES[:3]])
    assert all(found == written[0] for found in written)


def test_bench_says_whether_it_guesses(
    hmc: Hmc, tiny_checkpoint: Path, drafter: Path, text: Path, tmp_path: Path
) -> None:
    out = tmp_path / "b"
    hmc("compile", tiny_checkpoint, "-o", out, "--drafter", drafter)
    measured = [
        "bench",
        out,
        "--src",
        text,
        "--batch",
        "1",
        "--beam",
        "1",
        "--rounds",
        "1",
        "--limit",
        "2",
        "--json",
        "-",
    ]
    for options, said in (([], "guesses for"), (["--no-drafter"], "is left out")):
        ended = hmc(*measured, "--no-memory", *options)
        assert ended.exit_code == 0, ended.stderr
        report = json.loads(ended.stdout)
        assert said in report["contract"]
        assert report["conditions"]["drafter"] is (not options)


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"max_positions": 64}, [], "max_positions is 64, below the 96 of the levels"),
        ({"vocab_size": 121}, [], "vocab_size is 121, that of the levels 120"),
        ({}, ["--precision", "fp16"], "guesses for levels on a CPU"),
    ],
)
def test_drafters_that_cannot_guess(
    hmc: Hmc, tiny_checkpoint: Path, tmp_path: Path, changes: dict[str, int], options: list[str], message: str
) -> None:
    tiny_checkpoint_at(tmp_path / "drafter", arch=tiny_architecture(**SMALL, **changes))
    ended = hmc("compile", tiny_checkpoint, "-o", tmp_path / "b", "--drafter", tmp_path / "drafter", *options)
    assert ended.exit_code == 2
    assert message in " ".join(ended.stderr.split())
    assert not (tmp_path / "b").exists()


def test_a_drafter_that_is_not_there(hmc: Hmc, tiny_checkpoint: Path, tmp_path: Path) -> None:
    ended = hmc("compile", tiny_checkpoint, "-o", tmp_path / "b", "--drafter", tmp_path / "none")
    assert ended.exit_code == 2
    assert "none is not a directory" in " ".join(ended.stderr.split())


def test_a_damaged_drafter_is_told(hmc: Hmc, tiny_checkpoint: Path, drafter: Path, tmp_path: Path) -> None:
    out = tmp_path / "b"
    hmc("compile", tiny_checkpoint, "-o", out, "--drafter", drafter)
    chain = out / "drafter" / "decoder_chain.onnx"
    chain.write_bytes(chain.read_bytes() + b"x")
    raw = json.loads((out / "bundle.json").read_text())
    raw["drafter"]["architecture"]["eos_id"] = 5
    del raw["drafter"]["level"]["files"]["drafter/decoder_greedy.onnx"]
    (out / "bundle.json").write_text(json.dumps(raw))
    problems = "\n".join(bundle_problems(out))
    assert "drafter/decoder_chain.onnx has sha256" in problems
    assert "the drafter's eos_id is 5, that of the levels 0" in problems
    assert "drafter/decoder_greedy.onnx is not listed" in problems
