"""`hmc demo`: with a tiny checkpoint, and with the embedded one; both measure less than the real thing."""

import importlib.util
import json
import shlex
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
from sacrebleu.metrics import BLEU
from tests.command import done, refused, run_hmc
from tests.support.files import write_lines
from typer.testing import Result

from hmc.artifact import Manifest, validate
from hmc.artifact.bundle.manifest import Quality
from hmc.benchmark import read_sentences
from hmc.benchmark.measure.quality import over_kinds
from hmc.cli import demo_steps
from hmc.cli.common.consoles import open_console
from hmc.cli.demo import show_example
from hmc.cli.demo_scores import ShippedScores, sample_of


def run(*arguments: str | Path) -> Result:
    return run_hmc(["demo", *arguments])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_steps, "SIZE", demo_steps.Size(sentences=4, timed=2, rounds=1))


@pytest.fixture
def tiny_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_steps, "HEADS", (12, 5))


@pytest.mark.usefixtures("quick", "tiny_heads")
def test_steps_files_and_next_commands(tiny_checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ran = done(run("--checkpoint", tiny_checkpoint, "--out", out))
    steps = ["1. Compile", "   done in", "2. Serve", "3. Measure", "Picture: ", "Recommended: ", "Try next:"]
    places = [ran.stdout.index(step) for step in steps]
    assert places == sorted(places)
    assert "Timed: " not in ran.stdout, "how it was measured is in the results, and not on the screen"
    assert "Not steady" not in ran.stdout
    for source in (read_sentences(demo_steps.SRC)[line] for line in demo_steps.EXAMPLES):
        assert source in ran.stdout
    levels = ["full", "full-int8", "h12-int8", "h5-int8"]
    manifest = validate(out / "bundle")
    assert [level.name for level in manifest.levels] == levels
    assert all(level.quality and level.latency for level in manifest.levels)
    advised = f"Recommended: {manifest.default_level}, "
    told = f"{manifest.default_level} is the default level"
    assert advised in ran.stdout or told in ran.stdout, "what is served is what the demo advises, or it says why not"
    assert {path.name for path in out.iterdir()} == {"bundle", "quality.svg", "results.json"}
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert [set(example["translations"]) for example in results["examples"]] == [set(levels)] * len(demo_steps.EXAMPLES)
    assert results["report"]["contract"].startswith("Timed: ")
    assert len(results["seconds"]) == 3

    commands = [shlex.split(line, comments=True)[1:] for line in ran.stdout.split("Try next:\n")[1].splitlines()]
    assert [words[0] for words in commands] == ["serve", "translate"]
    assert "--http-port" in commands[0], "the next command serves the page, too"
    done(run_hmc(commands[1]))


@pytest.mark.usefixtures("quick")
def test_recorded_scores_decide_what_is_recommended_served_and_shown(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The demo runs twice: then with the scores of six kinds of text that somebody recorded for what the first made."""
    monkeypatch.setattr(demo_steps, "HEADS", (12,))
    monkeypatch.setattr(demo_steps, "PEER", "no_such_engine")
    out = tmp_path / "out"
    first = done(run("--checkpoint", tiny_checkpoint, "--out", out))
    assert "There are no recorded scores of full, full-int8, h12-int8: these 4 sentences decide." in first.stdout
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    monkeypatch.setattr(demo_steps, "SCORES", scores_for(results, validate(out / "bundle"), "h12-int8", tmp_path))

    second = done(run("--checkpoint", tiny_checkpoint, "--out", out))
    manifest = validate(out / "bundle")
    assert manifest.default_level == "h12-int8", "what is served where nobody asks for another"
    assert {len(level.quality.kinds) for level in manifest.levels if level.quality} == {2}
    lines = list(map(str.strip, second.stdout.splitlines()))
    assert "BLEU on 2,000 sentences of two kinds of text, beam 4" in lines
    assert [line.split()[:4] for line in lines if line.startswith("h12-int8  ")] == [
        ["h12-int8", "31.0", "+1.00", "[+0.93,"]
    ]
    agree = "These scores are recorded. The demo's own 4 sentences agree: all levels translate them as"
    assert f"{agree} when they were scored." in lines
    advised = lines.index("Try next:") - 1
    assert lines[advised].startswith("Recommended: h12-int8, the fastest level that loses at most 0.5 BLEU")
    assert "    # serves h12-int8, and the others: open " in lines[advised + 2], "and a page"
    assert "two kinds of text" in (out / "quality.svg").read_text(encoding="utf-8")


def scores_for(results: dict[str, Any], manifest: Manifest, best: str, folder: Path) -> Path:
    """Scores on two kinds of text: one level gains, and the others lose five BLEU, whatever they do here."""
    found = {}
    for level in results["report"]["levels"]:
        seen = Quality.model_validate(level["quality"][0])
        gain = 1.0 if level["name"] == best else -5.0
        change = {"bleu": 30 + gain, "bleu_delta": gain, "ci_low": gain - 0.1, "ci_high": gain + 0.1}
        kind = seen.model_copy(update=change | {"sentences": 1000})
        quality = over_kinds({"ui": kind, "help": kind}, "two kinds of text", "python -m scores")
        checkpoint = manifest.level(level["name"]).source_checkpoint
        scored = ShippedScores(checkpoint=checkpoint, quality=quality, sample=sample_of(level["translations"], seen))
        found[level["name"]] = scored.model_dump(mode="json")
    file = folder / "scores.json"
    file.write_text(json.dumps(found), encoding="utf-8")
    return file


def test_equal_translations_share_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    console = open_console()
    show_example(
        console, demo_steps.Example("A dog.", "Ein Hund.", {"full": "Ein Hund.", "h5": "Hund.", "h12": "Ein Hund."})
    )
    show_example(console, demo_steps.Example("A cat.", "Eine Katze.", {"full": "Eine Katze.", "h5": "Eine Katze."}))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["A", "dog."], ["Ein", "Hund.", "full,", "h12"], ["Hund.", "h5"],
        ["A", "cat."], ["Eine", "Katze.", "all", "levels"],
    ]  # fmt: skip


@pytest.mark.usefixtures("quick")
def test_json_is_all_there_is_on_standard_output(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_steps, "HEADS", (12,))
    monkeypatch.setattr(demo_steps, "PEER", "no_such_engine")
    ran = done(run("--checkpoint", tiny_checkpoint, "--out", tmp_path / "out", "--json"))
    assert json.loads(ran.stdout) == json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    assert "Try next:" in ran.stderr


@pytest.mark.slow
def test_the_embedded_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At int8, calibrated on few sentences; test_operations.py compiles and serves the levels in fp32."""
    few = write_lines(tmp_path / "few.en", read_sentences(demo_steps.CALIBRATION)[:16])
    monkeypatch.setattr(demo_steps, "CALIBRATION", few)
    monkeypatch.setattr(demo_steps, "PRECISIONS", ("int8",))
    demo = demo_steps.Demo(demo_steps.CHECKPOINT, demo_steps.LEVELS, demo_steps.FAST, tmp_path / "out")
    begun, expected = list[str](), list[int]()
    levels = demo.compile(begun.append, expected.append).levels
    assert expected == [len(begun)]
    assert [level.heads for level in levels] == [144, 75, 58, 45]
    _, examples = demo.translate()
    for example in examples:
        assert set(example.translations) == {level.name for level in levels}
        score = BLEU(effective_order=True).sentence_score(example.translations["full-int8"], [example.reference]).score
        assert score > 20


@pytest.mark.parametrize("name", ["results.json", "quality.svg"])
def test_results_of_another_program_stay(tiny_checkpoint: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    ran = run("--checkpoint", tiny_checkpoint, "--out", tmp_path)
    assert ran.exit_code == 2
    assert f"--out {tmp_path} holds {name}, which no demo wrote; choose another folder" in ran.stderr
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = importlib.util.find_spec

    def find_spec(name: str) -> ModuleSpec | None:
        return None if name in ("onnx", "onnx_ir") else found(name)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    ran = run("--out", tmp_path / "out")
    assert ran.exit_code == 2
    assert "the demo needs onnx, onnx_ir: in the folder of HMC's source, pip install '.[demo]'" in ran.stderr


def test_a_checkpoint_that_is_not_there_and_an_output_that_is_a_file(tiny_checkpoint: Path, tmp_path: Path) -> None:
    refused(run("--checkpoint", tmp_path / "missing", "--out", tmp_path / "out"), "missing: the checkpoint is missing")
    (tmp_path / "file").touch()
    refused(run("--checkpoint", tiny_checkpoint, "--out", tmp_path / "file"), "is a file; give a folder")


def test_embedded_texts() -> None:
    sources, references = read_sentences(demo_steps.SRC), read_sentences(demo_steps.REF)
    calibration = read_sentences(demo_steps.CALIBRATION)
    assert len(sources) == len(references) >= 200
    assert len(set(calibration)) == 64
    assert not set(calibration) & set(sources), "calibrating on the test set would be no test"
