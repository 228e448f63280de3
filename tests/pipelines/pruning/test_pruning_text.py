"""Pruning without parallel text, by the command: the demo's model as a checkpoint, and as Transformers writes it, with
one vocabulary and with two."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.artifact.marian.two_vocabularies import separated
from tests.command import done, refused, run_hmc
from tests.support import trained
from tests.support.files import write_lines
from tests.support.trained import CHECKPOINT, ENGLISH, GERMAN
from typer.testing import Result

from hmc.artifact import load_checkpoint
from hmc.artifact.marian.writer import export_marian
from hmc.serving import Translator
from hmc.training.data.parallel_text import read_pairs

pytestmark = pytest.mark.slow
QUICK = (
    "--close-steps",
    "10",
    "--recover-steps",
    "2",
    "--batch-tokens",
    "256",
    "--eval-sentences",
    "8",
    "--device",
    "cpu",
)
Models = Callable[[str], Path]


def run(*words: str | Path) -> Result:
    return run_hmc(words, env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def english(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("english") / "few.en"
    lines = trained.english(60)
    write_lines(path, lines)
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Name → the demo's model in that form."""
    folder = tmp_path_factory.mktemp("models")

    def make(name: str) -> Path:
        if name == "checkpoint":
            return CHECKPOINT
        transformers = pytest.importorskip("transformers", reason="transformers is not installed")
        if not (folder / "marian").is_dir():
            export_marian(load_checkpoint(CHECKPOINT), folder / "exported")
            loaded = transformers.MarianMTModel.from_pretrained(folder / "exported")
            loaded.save_pretrained(folder / "marian")
            transformers.MarianTokenizer.from_pretrained(folder / "exported").save_pretrained(folder / "marian")
            separated(folder / "marian", folder / "two")
        return folder / name

    return make


@pytest.mark.filterwarnings("ignore")  # what Transformers warns of is not ours to fix
@pytest.mark.parametrize("form", ["checkpoint", "marian", "two"])
def test_from_a_model_and_english_to_served_levels(models: Models, english: Path, tmp_path: Path, form: str) -> None:
    model, out = models(form), tmp_path / "run"
    ran = done(run("prune", model, "--source", english, "--target-heads", "50%,25%", *QUICK, "-o", out, "--json"))
    pruned = json.loads(ran.stdout)
    whole = load_checkpoint(out / "distilled" / "checkpoint" if form != "checkpoint" else model)
    assert [row["heads"] for row in pruned] == [whole.layout.total // 2, whole.layout.total // 4]
    assert (whole.architecture.source_vocab_size is None) == (form != "two")

    before = pruned[0]["metrics"]["dev_before"]
    assert (before["sentences"], before["bleu"] > 80) == (6, True), "the model agrees with its own translations"
    request = json.loads((out / "request.json").read_text())
    assert request["train"] == [f"{out}/distilled/train.source.txt {out}/distilled/train.target.txt"]
    dev = list(read_pairs(request["dev"]))
    assert not set(dev) & set(read_pairs(request["train"][0]))

    ran = run(
        "compile", pruned[1]["checkpoint"], "--precision", "int8", "--calibrate", english, "-o", tmp_path / "bundle"
    )
    assert ran.exit_code == 0, ran.output
    with Translator(tmp_path / "bundle", threads=1) as translator:
        assert translator.translate(["A dog runs across the grass."], segmentation="none")[0].text


def test_an_interrupted_run_translates_nothing_again(models: Models, english: Path, tmp_path: Path) -> None:
    words = (
        "prune",
        models("checkpoint"),
        "--source",
        english,
        "--target-heads",
        "50%",
        *QUICK,
        "-o",
        tmp_path / "run",
    )
    assert run(*words).exit_code == 0
    texts = {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / "distilled").rglob("*")}
    done(run(*words))
    assert texts == {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / "distilled").rglob("*")}


def test_parallel_text_is_added(models: Models, english: Path, tmp_path: Path) -> None:
    data = f"{ENGLISH} {GERMAN}"
    done(run(
        "prune", models("checkpoint"), "--source", english, "--data", data, "--dev", data, "--target-heads", "50%",
        *QUICK, "-o", tmp_path / "run",
    ))  # fmt: skip
    request = json.loads((tmp_path / "run" / "request.json").read_text())
    assert request["train"][0] == data
    assert request["train"][1].endswith("train.target.txt")
    assert request["dev"] == data
    assert (tmp_path / "run" / "distilled" / "dev.source.txt").read_bytes() == b"", "all translations train"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give --data and --dev (parallel text), or --source"),
        (("--data", "a b"), "give --data and --dev"),
        (("--source", "absent.en"), "absent.en: no such file"),
        (("--source", "ENGLISH", "--target-heads", "100%"), "give budgets below the 144 open heads"),
        (("--source", "ENGLISH", "--data", "x.en x.de"), "x.en: no such file"),
        (("--source", "ENGLISH", "--nested-heads", "importance"), "--nested-heads needs --nested-steps"),
    ],
)
def test_mistakes_are_found_before_anything_is_translated(
    english: Path, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    given = [str(english) if word == "ENGLISH" else word for word in words]
    budget = () if "--target-heads" in words else ("--target-heads", "50%")
    refused(run("prune", CHECKPOINT, *given, *budget, "-o", tmp_path / "run"), message)
    assert not (tmp_path / "run" / "distilled" / "teacher").exists()


def test_a_run_folder_of_another_program_is_left_alone(english: Path, tmp_path: Path) -> None:
    (tmp_path / "run" / "h72").mkdir(parents=True)
    (tmp_path / "run" / "h72" / "notes.txt").write_text("keep")
    ran = run("prune", CHECKPOINT, "--source", english, "--target-heads", "72", "-o", tmp_path / "run")
    assert (ran.exit_code, "holds h72" in ran.stderr) == (2, True), ran.stderr
    assert not (tmp_path / "run" / "distilled").exists()
