"""`hmc up`: one command from a downloaded model to a server; a second run repeats nothing."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Hmc
from tests.command import done, refused
from tests.processes import environment
from tests.support.files import write_lines
from tests.tiny import SENTENCES, tiny_checkpoint_at

from hmc.artifact import validate
from hmc.artifact.bundle.order import RULE
from hmc.artifact.storage.rows import text_lines
from hmc.serving.server.settings import ServerSettings


def steps(stdout: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stdout.splitlines()]


def test_a_second_run_repeats_nothing(hmc: Hmc, opus: Path, tmp_path: Path) -> None:
    arguments = ("up", opus, "-o", tmp_path / "out", "--no-serve", "--json")
    first, second = (hmc(*arguments) for _ in range(2))
    assert first.exit_code == 0, first.output
    assert "fp32: int8 is faster on a CPU, and needs text to calibrate with; give --source FILE" in first.stderr
    assert "No quality and no times will be recorded, because there is no text to measure on" in first.stderr
    assert [(step["step"], step["kept"]) for step in steps(first.stdout)] == [("import", False), ("compile", False)]
    assert [(step["step"], step["kept"]) for step in steps(second.stdout)] == [("import", True), ("compile", True)]
    assert [step["folder"] for step in steps(first.stdout)] == [step["folder"] for step in steps(second.stdout)]
    assert [level.name for level in validate(Path(steps(second.stdout)[-1]["folder"])).levels] == ["full"]


def test_a_terminal_gets_bars_and_a_line_a_step(
    hmc: Hmc, opus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    text = write_lines(tmp_path / "text.en", SENTENCES)
    generation = opus / "generation_config.json"
    generation.write_text(json.dumps(json.loads(generation.read_text()) | {"num_beams": 5}))
    out = tmp_path / "out"
    shown = done(hmc("up", opus, "-o", out, "--no-serve", "--source", text)).stderr
    [imported] = out.glob("imported-*")
    assert re.search(rf"50% writing {re.escape(str(imported))}", shown.replace("\n", ""))
    assert re.search(r"\d+% full-int8: .* left: ", shown)
    assert "% validate" in shown  # the last step of compiling
    assert re.search(r"\d+% full-int8: quality at beam 4.* left: ", shown)
    lines = [line for line in re.sub(r"\x1b\[[?\d;]*[a-zA-Z]|\r", "", shown).splitlines() if " left: " not in line]
    names = [name for line in lines for name in ("import", "compile", "measure") if line.startswith(f"{name}: ")]
    assert names == ["import", "compile", "measure"]
    assert "defaults that HMC does not apply itself: beam_size 5" in shown


def test_importing_has_a_bar_on_a_terminal_alone(
    hmc: Hmc, opus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert done(hmc("import", opus, "-o", tmp_path / "one")).stderr == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    shown = done(hmc("import", opus, "-o", tmp_path / "two")).stderr
    assert "50% writing" in shown
    assert " left: " in shown


def test_steps_within_the_model_are_no_part_of_it(hmc: Hmc, opus: Path) -> None:
    runs = [steps(hmc("up", opus, "-o", opus / "out", "--no-serve", "--json").stdout) for _ in range(2)]
    assert [step["kept"] for step in runs[1]] == [True, True]
    assert [step["folder"] for step in runs[0]] == [step["folder"] for step in runs[1]]


def test_the_default_level_of_several_is_said(hmc: Hmc, opus: Path, tmp_path: Path) -> None:
    text = write_lines(tmp_path / "text.en", SENTENCES)
    ran = hmc("up", opus, "-o", tmp_path / "out", "--no-serve", "--source", text, "--precision", "int8,fp32")
    assert ran.exit_code == 0, ran.output
    assert re.search(f"is the default level, the fastest that {RULE}|is the default level, the best one: ", ran.stderr)


def test_without_a_test_set_levels_are_measured_on_the_model_s_own_translations(
    hmc: Hmc, opus: Path, tmp_path: Path
) -> None:
    """As after pruning. A second run measures nothing again, and other text gives another bundle."""
    one, two = write_lines(tmp_path / "one.en", SENTENCES), write_lines(tmp_path / "two.en", ["A dog runs."])
    arguments = ("up", opus, "-o", tmp_path / "out", "--no-serve", "--json", "--source", one)
    first, second = (done(hmc(*arguments)) for _ in range(2))
    assert [step["step"] for step in steps(first.stdout)] == ["import", "compile", "measure"]
    assert [step["kept"] for step in steps(second.stdout)] == [True, True, True]
    bundle = Path(steps(first.stdout)[-1]["folder"])
    [level] = validate(bundle).levels
    assert level.quality
    assert level.latency
    assert (level.name, level.quality.test_set) == ("full-int8", "translations of the model at fp32")
    said = " ".join(first.stderr.split())
    assert "BLEU is their agreement with the model at fp32 on text of --source, not BLEU against people" in said
    assert not list((tmp_path / "out").glob("translated-*/teacher"))
    assert steps(done(hmc(*arguments, "--source", two)).stdout)[-1]["folder"] != str(bundle)


def test_another_option_or_model_gives_other_folders(hmc: Hmc, opus: Path, tmp_path: Path) -> None:
    common = ("up", opus, "-o", tmp_path / "out", "--no-serve", "--json")
    write_lines(tmp_path / "text.en", SENTENCES)
    plain = steps(hmc(*common).stdout)
    calibrated = hmc(*common, "--source", tmp_path / "text.en")
    assert "fp32: int8 is faster" not in calibrated.stderr
    int8 = steps(calibrated.stdout)
    assert int8[0] == plain[0] | {"kept": True}
    assert int8[1]["folder"] != plain[1]["folder"]
    assert [level.precision for level in validate(Path(int8[1]["folder"])).levels] == ["int8"]
    config = json.loads((opus / "config.json").read_text())
    (opus / "config.json").write_text(json.dumps(config | {"activation_function": "swish"}))
    changed = steps(hmc(*common).stdout)
    assert not any(step["kept"] for step in changed)
    assert len(list((tmp_path / "out").glob("*-????????????"))) == 6  # that of the text's translations too
    weights = ("up", next(opus.glob("*.safetensors")), *common[2:])
    named = steps(hmc(*weights).stdout)
    (opus / "config.json").write_text(json.dumps(config))
    assert named[0]["folder"] != steps(hmc(*weights).stdout)[0]["folder"]


@pytest.mark.slow
def test_pruned_levels_are_served(data: Path, tmp_path: Path, hmc: Hmc) -> None:
    """Import, prune with the model's own translations, compile, serve, translate; then all of it from what was kept."""
    from hmc.serving.client import Client

    if not (data / "marian-en-de").is_dir():
        pytest.skip("HMC_DATA holds no marian-en-de")
    text = tmp_path / "text.en"
    write_lines(text, islice(text_lines(data / "multi30k" / "val.en.gz"), 24))
    arguments = [
        "up", data / "marian-en-de", "-o", tmp_path / "out", "--source", text, "--target-heads", "50%", "--prune-steps",
        "10", "--json", "--port", "0",
    ]  # fmt: skip
    command = [sys.executable, "-m", "hmc.cli", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stdout is not None
        said = [json.loads(process.stdout.readline()) for _ in range(5)]
        assert [step.get("step") for step in said] == ["import", "prune", "compile", "measure", None]
        qualities = [level.quality for level in validate(Path(said[3]["folder"])).levels]
        assert [quality and quality.test_set for quality in qualities] == ["translations of the unpruned model"] * 2
        assert said[4]["levels"] == ["full-int8", "h36-int8"]
        with Client(said[4]["address"]) as client:
            client.wait_ready()
            answer = client.translate(["A man plays the guitar."], "full-int8")
            assert [translation.text for translation in answer] == ["Ein Mann spielt Gitarre."]
            assert len(client.translate(["A dog runs."], "h36-int8")) == 1
        process.send_signal(signal.SIGTERM)
        process.communicate()
    assert process.returncode == 0
    again = hmc(*arguments[:-2], "--no-serve")
    assert [step["kept"] for step in steps(again.stdout)] == [True, True, True, True]
    assert "agreement with the unpruned model on held-out text of --source, not BLEU against people" in again.stderr


def test_the_server_is_set_up_as_that_of_serve(
    hmc: Hmc, opus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = list[ServerSettings]()

    def serve(_bundles: list[str], settings: ServerSettings, **_: object) -> None:
        served.append(settings)

    monkeypatch.setattr("hmc.cli.running.serve_models", serve)
    monkeypatch.setenv("HMC_TOKEN", "secret")
    monkeypatch.setenv("HMC_PORT", "50052")
    arguments = ("up", opus, "-o", tmp_path / "out")
    for more in ((), ("--port", "0", "--http-port", "0")):
        ran = hmc(*arguments, *more)
        assert ran.exit_code == 0, ran.output
    assert [(each.token, each.port, each.http_port) for each in served] == [("secret", 50052, None), ("secret", 0, 0)]


def test_a_folder_needs_no_dot_and_slash(hmc: Hmc, opus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(opus.parent)
    ran = hmc("up", opus.name, "--no-serve", "--json")
    assert [step["step"] for step in steps(ran.stdout)] == ["import", "compile"]


def test_levels_are_measured_on_a_test_set(hmc: Hmc, opus: Path, tmp_path: Path) -> None:
    """Quality and the latency of single sentences, which the selectors need. A second run measures nothing again."""
    source, reference = tmp_path / "text.en", tmp_path / "text.de"
    write_lines(source, SENTENCES)
    write_lines(reference, SENTENCES)
    arguments = ("up", opus, "-o", tmp_path / "out", "--no-serve", "--json", "--eval", source, reference)
    first, second = (hmc(*arguments) for _ in range(2))
    assert [step["step"] for step in steps(first.stdout)] == ["import", "compile", "measure"], first.output
    assert [step["kept"] for step in steps(second.stdout)] == [True, True, True]
    bundle = Path(steps(first.stdout)[-1]["folder"])
    (level,) = validate(bundle).levels
    assert level.quality
    assert level.latency
    assert (level.quality.test_set, level.quality.sentences, level.latency.batch) == ("text", len(SENTENCES), 1)
    assert "not BLEU against people" not in first.stderr
    for selector in (("--max-bleu-drop", "1"), ("--latency-budget-ms", "100000")):
        done(hmc("translate", "--bundle", bundle, *selector, "A dog runs."))
    unmeasured = hmc(*arguments[:-3])
    assert steps(unmeasured.stdout)[-1]["folder"] != str(bundle)


def test_what_the_model_asks_for_in_vain_is_said(hmc: Hmc, opus: Path, tmp_path: Path) -> None:
    generation = opus / "generation_config.json"
    generation.write_text(json.dumps(json.loads(generation.read_text()) | {"num_beams": 5, "min_length": 6}))
    ran = hmc("up", opus, "-o", tmp_path / "out", "--no-serve")
    assert "defaults that HMC does not apply itself: beam_size 5" in ran.stderr
    assert re.search(r"Settings of the model that HMC ignores: .*\bmin_length\b", ran.stderr)


def test_a_damaged_bundle_is_not_taken_for_a_finished_step(hmc: Hmc, opus: Path, tmp_path: Path) -> None:
    arguments = ("up", opus, "-o", tmp_path / "out", "--no-serve", "--json")
    bundle = Path(steps(hmc(*arguments).stdout)[-1]["folder"])
    weights = max(bundle.rglob("*"), key=lambda file: file.stat().st_size)
    weights.write_bytes(weights.read_bytes()[:100])
    refused(hmc(*arguments), "Delete this folder, and give the same command again")


def test_what_cannot_work_is_said_first(hmc: Hmc, opus: Path, tmp_path: Path) -> None:
    for arguments, said in (
        (
            ("up", tmp_path / "missing"),
            "no such file or folder here; give the path of a model, or its name on the Hugging Face hub",
        ),
        (("up", opus, "--target-heads", "50%"), "--target-heads needs sources"),
        (("up", "opus-mt-en-de"), "with its owner, such as Helsinki-NLP/opus-mt-en-de"),
        (("up", opus, "--http-port", "99999"), "--http-port 99999: choose 0 to 65535"),
        (("up", opus, "--eval", tmp_path / "none.en", tmp_path / "none.de"), "none.en: no such file"),
        (("up", opus, "--source", tmp_path / "none.en"), "none.en: no such file"),
        (("up", opus, "--precision", "int9"), "--precision 'int9': choose fp32"),
        (("up", opus, "-o", opus), "is a model; give a folder of its own"),
        (("up", opus, "--port", "99999"), "port 99999: choose 0 to 65535"),
    ):
        ran = hmc(*arguments, *(() if "-o" in arguments else ("-o", tmp_path / "out")))
        assert (ran.exit_code, said in ran.stderr) == (2, True), ran.output
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_has_its_languages(hmc: Hmc, tmp_path: Path) -> None:
    tiny_checkpoint_at(tmp_path / "model")
    ran = hmc("up", tmp_path / "model", "-o", tmp_path / "out", "--source-language", "fr", "--no-serve")
    assert (ran.exit_code, "has its languages: leave out --source-language" in ran.stderr) == (2, True), ran.output
