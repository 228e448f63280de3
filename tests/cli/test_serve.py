"""`hmc serve` as a process of its own: start, work, signals and exit codes."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.conftest import Hmc
from tests.processes import environment
from tests.serving.certificates import make_certificate
from tests.serving.fakes import GUARD_S, eventually, write_bundle

from hmc.artifact.errors import UnauthenticatedError
from hmc.serving import DecodeOptions, Translator
from hmc.serving.client import Client
from hmc.serving.server.access.tokens import line_of

pytestmark = pytest.mark.slow


@contextmanager
def serving(*arguments: str | Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, object]]]:
    """The process, and what it says about itself once it serves."""
    command = [sys.executable, "-m", "hmc.cli", "serve", *map(str, arguments), "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        try:
            yield process, json.loads(line)
        finally:
            process.kill()


def test_from_start_to_sigterm(tiny_bundle: Path) -> None:
    sentences = ["A man rides a bicycle.", "Two dogs.", ""]
    options = DecodeOptions(max_length=12)
    with serving(tiny_bundle, "--metrics-port", "0", "--device", "cpu") as (process, said):
        address = str(said["address"])
        with Client(address) as client:
            client.wait_ready(GUARD_S)
            levels = client.levels()
            assert [x.name for x in levels.levels if x.loaded] == said["levels"]
            for level in levels.levels:
                answer = client.translate(sentences, level.name, options, timeout=60)
                assert answer.level == level.name
                with Translator(tiny_bundle, level.name, device="cpu") as translator:
                    assert list(answer) == translator.translate(sentences, options)
                streamed = client.translate_stream(sentences, level.name, options, timeout=60)
                assert [a.result().text for a in streamed] == [t.text for t in answer]
        metrics = f"http://127.0.0.1:{said['metrics_port']}/metrics"
        with urllib.request.urlopen(metrics, timeout=GUARD_S) as response:
            assert 'hmc_requests_total{code="OK"' in response.read().decode()
        process.send_signal(signal.SIGTERM)
        assert process.wait(GUARD_S) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


LOADS_FOREVER = """
import sys, threading
from hmc.serving.server import app

def load(*_):
    print("loading", flush=True)
    threading.Event().wait()  # nothing sets it

app.translator_factory = lambda *_: load
sys.argv = ["hmc", "serve", sys.argv[1], "--port", "0", "--fronts", sys.argv[2]]
from hmc.cli.main import main
main()
"""


@pytest.mark.parametrize("fronts", ["0", "1"])
def test_a_second_signal_ends_a_process_that_loads(tmp_path: Path, fronts: str) -> None:
    command = [sys.executable, "-c", LOADS_FOREVER, str(write_bundle(tmp_path / "b")), fronts]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        try:
            assert process.stdout.readline() == "loading\n"
            process.send_signal(signal.SIGTERM)
            assert "no further level is loaded" in process.stderr.readline()
            process.send_signal(signal.SIGTERM)
            assert process.wait(GUARD_S) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()


def test_few_rows(tiny_bundle: Path) -> None:
    with (
        serving(tiny_bundle, "--max-rows", "1", "--device", "cpu", "--levels", "h5") as (_, said),
        Client(str(said["address"])) as client,
    ):
        assert client.translate(["A man."], "h5", DecodeOptions(beam_size=1, max_length=5))[0].target_tokens == 5


def test_a_busy_port(tmp_path: Path) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        command = [sys.executable, "-m", "hmc.cli", "serve", str(write_bundle(tmp_path / "b")), "--port", str(port)]
        ran = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=600, check=False)
    assert ran.returncode == 2, ran.stderr
    assert "Traceback" not in ran.stderr
    assert f"port {port} on 127.0.0.1 is in use by another process: stop that one, or choose another" in ran.stderr
    assert ran.stderr.startswith("hmc: "), "no log before the error"


@pytest.mark.parametrize(
    "arguments", [["nowhere"], ["BUNDLE", "--levels", "h99"], ["BUNDLE", "--fronts", "2", "--tls-cert", "nowhere"]]
)
def test_a_failed_start_says_its_error_alone(tmp_path: Path, arguments: list[str]) -> None:
    bundle = str(write_bundle(tmp_path / "b"))
    words = [bundle if word == "BUNDLE" else word for word in arguments]
    command = [sys.executable, "-m", "hmc.cli", "serve", *words, "--port", "0"]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=600, check=False)
    assert ran.returncode == 2
    assert ran.stderr.startswith("hmc: "), ran.stderr


def test_the_log_says_when_the_server_is_ready(tiny_bundle: Path, tmp_path: Path) -> None:
    more = ("--device", "cpu", "--levels", "full,h5", "--http-port", "0", "--cache", tmp_path / "cache")
    with serving(tiny_bundle, *more, "--log-texts") as (process, said):
        process.send_signal(signal.SIGTERM)
        assert process.wait(600) == 0
        assert process.stderr is not None
        lines = process.stderr.read().splitlines()
    assert sum("packing weights" in line for line in lines) == 1
    [settings] = [number for number, line in enumerate(lines) if "settings {" in line]
    [ready] = [number for number, line in enumerate(lines) if " ready: " in line]
    assert settings < ready
    assert f"ready: gRPC {said['address']}, HTTP {said['http_address']}; full, h5" in lines[ready]


def test_a_file_of_settings_tokens_that_are_replaced_and_a_log_in_json(tiny_bundle: Path, tmp_path: Path) -> None:
    """SIGHUP reads the tokens file again, and does not end the process."""
    tokens, config = tmp_path / "tokens.toml", tmp_path / "hmc.toml"
    tokens.write_text(line_of("first", "t-first", ["translate"], {}))
    config.write_text(
        f'bundles = ["{tiny_bundle}"]\nport = 1\nlevels = ["h5"]\ndefault_level = "h5"\ndevice = "cpu"\n'
        f'tokens = "{tokens}"\nlog_format = "json"\nlog_calls = true\n'
    )
    options = DecodeOptions(beam_size=1, max_length=5)
    with serving("--config", config) as (process, said):
        address = str(said["address"])
        assert said["levels"] == ["h5"]
        with Client(address, token="t-first") as client:
            client.translate(["A man."], options=options, timeout=60)
        tokens.write_text(line_of("second", "t-second", ["translate"], {}))
        process.send_signal(signal.SIGHUP)

        def opened() -> bool:
            with Client(address, token="t-second") as client:
                try:
                    return bool(client.translate(["A man."], options=options, timeout=60))
                except UnauthenticatedError:
                    return False

        eventually(opened, 60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(GUARD_S) == 0
        assert process.stderr is not None
        lines = [json.loads(line) for line in process.stderr.read().splitlines()]
    (settings,) = (line["settings"] for line in lines if "settings" in line)
    assert (settings["port"], settings["log_format"], settings["tokens"]) == (0, "json", str(tokens))
    calls = [(line["caller"], line["status"]) for line in lines if "milliseconds" in line]
    assert calls[0] == ("first", "OK")
    assert calls[-1] == ("second", "OK")


def test_settings_are_printed(hmc: Hmc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HMC_TOKEN", "s3cret")
    monkeypatch.setenv("HMC_QUEUE_SIZE", "7")
    ran = hmc("serve", tmp_path / "no bundle", "--no-lazy", "--print-config")
    assert ran.exit_code == 0
    assert "queue_size = 7  # HMC_QUEUE_SIZE\n" in ran.stdout
    assert "lazy = false  # command line\n" in ran.stdout
    assert "s3cret" not in ran.stdout
    assert json.loads(hmc("serve", "--print-config", "--json").stdout)["token"] == "(set, not shown)"
    ran = hmc("serve")
    assert (ran.exit_code, ran.stderr) == (2, "hmc: no bundle to serve: give [NAME=]BUNDLE, or `bundles` in the file\n")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("none", "nowhere does not exist\nGive the"),
        ("future", "schema version 99; this hmc reads versions 2 to 6\nUpgrade hmc"),
        ("missing", "h6/decoder.onnx is missing"),
        ("changed", "h6/decoder.onnx has sha256"),
        ("unknown level", "unknown level 'h7'; this bundle has: full, h12, h6"),
    ],
)
def test_what_cannot_be_served(fails: Callable[..., str], tmp_path: Path, damage: str, said: str) -> None:
    bundle, extra = write_bundle(tmp_path / "b"), ["--port", "0"]
    match damage:
        case "none":
            bundle = tmp_path / "nowhere"
        case "future":
            (bundle / "bundle.json").write_text('{"schema_version": 99}')
        case "missing":
            (bundle / "h6" / "decoder.onnx").unlink()
        case "changed":
            (bundle / "h6" / "decoder.onnx").write_text("other")
        case _:
            extra += ["--levels", "h7"]
    assert said in fails(bundle, *extra)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "."], "hmc: --host '.': it is not a valid host name; choose another"),
        (["--host", "a" * 64], "it is not a valid host name"),
        (["--cache", ""], "hmc: --cache: name a folder, or give auto or none"),
    ],
)
def test_words_of_no_use(fails: Callable[..., str], tiny_bundle: Path, arguments: list[str], said: str) -> None:
    assert said in fails(tiny_bundle, "--port", "0", *arguments)


def test_an_empty_token_opens_nothing(
    fails: Callable[..., str], tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HMC_TOKEN", "")
    assert "hmc: the token must be printable ASCII and not empty" in fails(tiny_bundle, "--port", "0")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_address_that_cannot_be_printed_is_an_error(tiny_bundle: Path, unbuffered: str) -> None:
    """When the address cannot be printed, the command says so and stops in order."""
    command = [sys.executable, "-m", "hmc.cli", "serve", str(tiny_bundle), "--port", "0", "--device", "cpu"]
    there = environment(PYTHONUNBUFFERED=unbuffered)
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, env=there, timeout=600, check=False
        )
    assert ran.returncode == 2
    assert ran.stderr.splitlines()[-1] == "hmc: standard output: No space left on device; make room"
    assert "never awaited" not in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("cert", "key", "said"),
    [
        ("server.pem", "nowhere", "hmc: TLS: cannot read {}/nowhere: No such file or directory; check the path"),
        ("text", "server.key", "hmc: TLS: {}/text holds no certificates in PEM"),
        ("server.pem", "other.key", "hmc: TLS: the key {0}/other.key does not belong to the first certificate in {0}/"),
    ],
)
def test_tls_files_that_cannot_be_used_are_reported_before_the_bundle_is_read(
    fails: Callable[..., str], tmp_path: Path, cert: str, key: str, said: str
) -> None:
    make_certificate(tmp_path)
    make_certificate(tmp_path, "other")
    (tmp_path / "text").write_text("no certificate\n")
    reported = fails(tmp_path / "no bundle", "--tls-cert", tmp_path / cert, "--tls-key", tmp_path / key)
    assert reported.startswith(said.format(tmp_path))
    assert "bundle" not in reported


def test_cuda_that_is_not_there_is_never_the_cpu(fails: Callable[..., str], tiny_bundle: Path) -> None:
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has a CUDA device")
    said = fails(tiny_bundle, "--device", "cuda", "--port", "0")
    assert "level 'full' on cuda: the NVIDIA driver is missing" in said
    assert "Or use the cpu" in said
