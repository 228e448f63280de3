"""`hmc translate` and `hmc levels` against a real server, and against a real bundle."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from tests.cli.conftest import Hmc
from tests.command import refused
from tests.processes import environment
from tests.serving.fakes import FakeFactory
from tests.tiny import tiny_checkpoint_at

from hmc.artifact import save_checkpoint
from hmc.cli.common import backends
from hmc.cli.common.commands import TRY_AGAIN
from hmc.cli.common.options import BackendOptions
from hmc.cli.common.records import plain, record
from hmc.compiler import LevelRequest, compile_bundle
from hmc.serving import Alternative, DecodeOptions, Translation
from hmc.serving.client import Segmentation, StreamAnswer
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings


def test_arguments(hmc: Hmc, server: BackgroundServer) -> None:
    ran = hmc("translate", "--server", server.address, "A dog.", "", "Zwölf ☃")
    assert (ran.exit_code, ran.stdout) == (0, "full:A dog.\n\nfull:Zwölf ☃\n")


def test_stdin_and_file_give_a_line_for_a_line(hmc: Hmc, server: BackgroundServer, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_bytes(b"one\r\n\ntwo")
    ran = hmc("translate", "--server", server.address, "--source", tmp_path / "in.txt", "--level", "h6")
    assert (ran.exit_code, ran.stdout) == (0, "h6:one\n\nh6:two\n")
    ran = hmc(
        "translate", "--server", server.address, "--max-heads", 12, stdin=b"".join(b"%d\n" % i for i in range(1000))
    )
    assert ran.stdout.splitlines() == [f"h12:{i}" for i in range(1000)]


def test_n_best_is_tab_separated(hmc: Hmc, server: BackgroundServer) -> None:
    ran = hmc("translate", "--server", server.address, "--n-best", 3, "a")
    assert ran.stdout == "full:a\ta #1\ta #2\n"


def test_json(hmc: Hmc, server: BackgroundServer) -> None:
    ran = hmc("translate", "--server", server.address, "--json", "--n-best", 2, "ä", "")
    first, second = map(json.loads, ran.stdout.splitlines())
    assert first["text"] == "ä"
    assert first["translation"] == "full:ä"
    assert [(a["translation"], a["score"]) for a in first["alternatives"]] == [("ä #1", -1.5)]
    assert (first["level"], first["bundle_version"]) == ("full", "0123456789abcdef")
    assert first["queue_ms"] == pytest.approx(1.0)
    assert second["translation"] == ""


@pytest.mark.parametrize(
    ("arguments", "stdin", "said"),
    [
        (["a"], None, "give exactly one of --bundle DIR and --server HOST:PORT"),
        (["--server", "x:1", "--bundle", "b", "a"], None, "give exactly one of"),
        (
            ["--server", "SERVER", "--level", "nope", "a"],
            None,
            "hmc: unknown level 'nope'; this bundle has: full, h12, h6",
        ),
        (
            ["--server", "SERVER", "--level", "h6", "--max-heads", "3", "a"],
            None,
            "--level and --max-heads each choose the level: give one of them",
        ),
        (
            ["--server", "SERVER", "--auto", "--latency-budget-ms", "3", "a"],
            None,
            "--latency-budget-ms and --auto each choose the level: give one of them",
        ),
        (["--server", "SERVER", "--max-bleu-drop", "-1", "a"], None, "--max-bleu-drop -1.0: choose 0 or more BLEU"),
        (["--server", "SERVER", "--beam", "99", "a"], None, "--beam 99: choose 1 to 16"),
        (
            ["--server", "SERVER", "--max-length", "3000000000", "a"],
            None,
            "--max-length 3000000000: choose 1 or more, up",
        ),
        (
            ["--server", "SERVER", "--max-heads", "3000000000", "a"],
            None,
            "--max-heads 3000000000: choose 0 or more",
        ),
        (["--server", "SERVER", "--timeout", "0", "a"], None, "--timeout 0: choose more than 0 seconds"),
        (["--server", "SERVER", "--timeout", "nan", "a"], None, "--timeout nan: choose more than 0 seconds"),
        (["--server", "SERVER", "--top-k", "5", "a"], None, "--top-k needs --sample"),
        (["--server", "SERVER", "--alignment", "a"], None, "--alignment needs --json"),
        (["--server", "SERVER", "--incremental", "--json", "a"], None, "--incremental does not work with --json"),
        (
            ["--server", "SERVER", "--min-length", "5", "--max-length", "4", "a"],
            None,
            "--min-length 5: choose 1 to --",
        ),
        (["--server", "SERVER"], b"fine\nb\xffd\n", "stdin is not UTF-8: byte 0xff at offset 6, in line 2; convert it"),
        (["--server", "SERVER"], b"fine\n" + b"x" * 100_000, "line 2 is longer than 65536 bytes: split it"),
        (["--bundle", "/nowhere", "a"], None, "bundle /nowhere cannot be used:\n  - /nowhere does not exist\nGive the"),
    ],
)
def test_what_goes_wrong(
    hmc: Hmc, server: BackgroundServer, arguments: list[str], stdin: bytes | None, said: str
) -> None:
    ran = refused(hmc("translate", *(server.address if a == "SERVER" else a for a in arguments), stdin=stdin), said)
    assert "Traceback" not in ran.output
    if stdin:
        assert ran.stdout == "full:fine\n"


def test_no_server(hmc: Hmc) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        ran = hmc("translate", "--server", f"127.0.0.1:{probe.getsockname()[1]}", "a")
    assert ran.exit_code == TRY_AGAIN
    assert "is `hmc serve` running there" in ran.stderr


def test_a_bug_of_the_server_is_exit_code_1(hmc: Hmc, server: BackgroundServer) -> None:
    ran = hmc("translate", "--server", server.address, "crash")
    assert ran.exit_code == 1
    assert "the server has a bug" in ran.stderr


def test_levels_of_a_server(hmc: Hmc, server: BackgroundServer, factory: FakeFactory) -> None:
    factory.made[0].device = "cuda:0"
    ran = hmc("levels", "--server", server.address)
    assert ran.exit_code == 0
    assert "en → de, bundle 0123456789abcdef on cpu, cuda:0" in ran.stdout
    (row,) = [line for line in ran.stdout.splitlines() if "h12" in line]
    assert [cell.strip() for cell in row.split("│")[1:-1]] == [
        "h12", "fp32", "12", "4/4/4", "2,000", "0.0 + 0.0", "29.80", "-0.20 (-0.30 to -0.10)", "50.00",
        "10.0", "20.0", "0.0 + 0.0", "on cpu",
    ]  # fmt: skip
    listed = json.loads(hmc("levels", "--server", server.address, "--json").stdout)
    assert [level["name"] for level in listed["levels"]] == ["full", "h12", "h6"]
    assert listed["levels"][1]["quality"]["bleu_delta"] == pytest.approx(-0.2)


def test_levels_of_a_bundle(hmc: Hmc, fake_bundle: Path) -> None:
    ran = hmc("levels", fake_bundle)
    assert "full (default)" in ran.stdout
    assert json.loads(hmc("levels", fake_bundle, "--json").stdout)["bundle_version"] == "0123456789abcdef"


@pytest.mark.parametrize("arguments", [[], ["bundle", "--server", "x:1"]])
def test_levels_of_exactly_one_thing(hmc: Hmc, arguments: list[str]) -> None:
    refused(hmc("levels", *arguments), "give exactly one of BUNDLE (a directory) and --server HOST:PORT")


def test_a_real_bundle(hmc: Hmc, tiny_bundle: Path) -> None:
    ran = hmc("translate", "--bundle", tiny_bundle, "--level", "h12", "--max-length", 5, stdin=b"A man.\n\nTwo dogs.\n")
    assert ran.exit_code == 0, ran.stderr
    first, second, third = ran.stdout.split("\n")[:3]
    assert second == ""
    alone = hmc("translate", "--bundle", tiny_bundle, "--max-heads", 12, "--max-length", 5, "A man.", "Two dogs.")
    assert alone.stdout == f"{first}\n{third}\n"
    assert hmc("translate", "--bundle", tiny_bundle, "--auto", "--max-length", 5, "A man.").exit_code == 0
    for selector in (["--max-bleu-drop", 9], ["--latency-budget-ms", 10_000]):
        ran = hmc("translate", "--bundle", tiny_bundle, *selector, "a")
        assert ran.exit_code == 2  # nothing is recorded in it
        assert "record" in ran.stderr
    refused(hmc("translate", "--bundle", tiny_bundle, "--max-heads", 1, "a"), "no level here has at most 1 heads")
    refused(hmc("translate", "--bundle", tiny_bundle, stdin=b"A man.\n\xff\n"), "byte 0xff at offset 7")


def test_decoding_options_reach_a_real_bundle(hmc: Hmc, tiny_bundle: Path) -> None:
    where = ["--bundle", tiny_bundle, "--level", "full", "--max-length", 12]
    plain = hmc("translate", *where, "A man.").stdout
    repeated = hmc("translate", *where, "--no-repeat-ngram", 1, "--suppress-unknown", "A man.").stdout
    assert repeated != plain
    assert hmc("translate", *where, "--target-prefix", "Two dogs", "A man.", "").stdout.startswith("Two dogs")
    sampled = [
        hmc("translate", *where, "--sample", "--temperature", 2, "--seed", n, "A man.").stdout for n in (1, 1, 2)
    ]
    assert sampled[0] == sampled[1] != sampled[2]
    ran = hmc("translate", *where, "--json", "--token-scores", "--alignment", "--attention-head", "cross.1.0", "A man.")
    found = json.loads(ran.stdout)
    assert len(found["tokens"]) == len(found["alignment"]) == found["target_tokens"] == 12
    assert len(found["tokens"][0]["attention"]) == len(found["source_pieces"]) == found["source_tokens"]
    mean = sum(t["score"] for t in found["tokens"]) / 12
    assert found["score"] == pytest.approx(mean, abs=1e-4)


def test_incremental_output_is_the_translation(hmc: Hmc, server: BackgroundServer, tiny_bundle: Path) -> None:
    assert hmc("translate", "--server", server.address, "--incremental", "a", "", "b").stdout == "full:a\n\nfull:b\n"
    where = ["--bundle", tiny_bundle, "--max-length", 12, "A man.", "Two dogs."]
    assert hmc("translate", "--incremental", *where).stdout == hmc("translate", *where).stdout


def test_incremental_errors_name_the_line(hmc: Hmc, server: BackgroundServer, tiny_bundle: Path) -> None:
    for where in (["--server", server.address], ["--bundle", tiny_bundle, "--max-length", 3]):
        lines = b"fine\n\n" + b"x" * 100_000 + b"\n"
        ran = refused(hmc("translate", *where, "--incremental", stdin=lines))
        assert ran.stderr.splitlines()[-1].startswith("hmc: line 3")
        assert ran.stdout.count("\n") == 2
        ran = hmc("translate", *where, "--incremental", stdin=b"fine\nb\xffd\n")
        assert ran.stderr.splitlines()[-1].startswith("hmc: stdin is not UTF-8: byte 0xff at offset 6, in line 2")


def test_no_limit_is_no_limit(hmc: Hmc, server: BackgroundServer) -> None:
    for seconds in ("inf", "1e12"):
        assert hmc("translate", "--server", server.address, "--timeout", seconds, "a").stdout == "full:a\n"


def test_the_timeout_is_that_of_the_whole_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several texts are several calls, and each has the time that is left."""
    now, given = [0.0], list[float | None]()
    monkeypatch.setattr("hmc.cli.common.backends.time.monotonic", lambda: now[0])

    class Slow:
        def translate(
            self, texts: list[str], selector: object, options: object, timeout: float | None, **_: object
        ) -> Answer:
            given.append(timeout)
            now[0] += 2
            return Answer([Translation(texts[0], 0.0, 1, 1)])

    class Answer(list[Translation]):
        level = bundle_version = "full"

    for timeout in (5.0, None):
        chosen = BackendOptions("server", timeout=timeout)
        backend = backends.ServerBackend(cast(Any, Slow()), chosen)
        for n in range(3):
            backend.text(n, "a", DecodeOptions(), "", Segmentation.AUTO)
    assert given == [5.0, 3.0, 1.0, None, None, None]


def test_a_translation_stays_on_its_line() -> None:
    """A vocabulary with byte pieces can produce every character, also newlines."""
    best = Translation("one\ntwo\r", 0.0, 3, 4, alternatives=(Alternative("a\tb", -1.0),))
    answer = StreamAnswer(0, best, None, "full", "v1")
    assert plain(answer) == "one two \ta b"
    assert record("x", answer)["translation"] == "one\ntwo\r"


def test_a_text_that_is_cut_is_said(hmc: Hmc, tiny_bundle: Path, tmp_path: Path) -> None:
    long = "dog " * 500
    ran = hmc("translate", "--bundle", tiny_bundle, "--beam", 1, stdin=f"A dog.\n{long}\n".encode())
    assert ran.exit_code == 0
    said = next(line for line in ran.stderr.splitlines() if "greatest length" not in line)
    assert said.startswith("hmc: line 2: only its first ")
    settings = ServerSettings(port=0, device="cpu", levels=("full",))
    with BackgroundServer(tiny_bundle, settings) as server:
        for where in (["--bundle", tiny_bundle], ["--server", server.address]):
            piecewise = hmc("translate", *where, "--beam", 1, "--incremental", "A dog.", long)
            assert (piecewise.stdout, piecewise.stderr) == (ran.stdout, ran.stderr)
    (tmp_path / "long").write_text(f"A dog.\n{long}\n")
    (tmp_path / "short").write_text("A dog.\nA dog.\n")
    scored = hmc("score", "--bundle", tiny_bundle, tmp_path / "long", tmp_path / "short")
    assert scored.stderr == said.replace("translated", "scored with") + "\n"
    reported = hmc("translate", "--bundle", tiny_bundle, "--beam", 1, "--json", stdin=long.encode())
    assert reported.stderr == ""
    assert json.loads(reported.stdout)["source_truncated"]


def test_an_empty_translation_is_said(hmc: Hmc, tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint_at(tmp_path / "random")
    checkpoint.tensors["final_logits_bias"][checkpoint.architecture.eos_id] = 1e4  # every translation ends at once
    save_checkpoint(checkpoint, tmp_path / "c")
    compile_bundle([LevelRequest(tmp_path / "c")], tmp_path / "b")
    (tmp_path / "texts").write_text("\nA dog.\n")
    said = "the translation is empty, though the text is not; try another level"
    for name, how in (
        ("text 2", ["", "A dog."]),
        ("text 2", ["--json", "", "A dog."]),
        ("line 2", ["--incremental", "", "A dog."]),
        ("line 2", ["--source", str(tmp_path / "texts")]),
        ("line 2", ["--source", str(tmp_path / "texts"), "--out", str(tmp_path / "out")]),
    ):
        ran = hmc("translate", "--bundle", tmp_path / "b", *how)
        assert ran.exit_code == 0
        (warning,) = [line for line in ran.stderr.splitlines() if "is empty" in line]
        assert warning.startswith(f"hmc: {name}: {said}")
    assert (tmp_path / "out").read_text() == "\n\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--bundle", "b", "--timeout", "3"], "--timeout is for a server: leave it out with --bundle"),
        (["--bundle", "b", "--token", "x"], "--token is for a server: leave it out with --bundle"),
        (
            ["--bundle", "b", "--tls-cert", "c", "--tls-key", "k"],
            "--tls-cert, --tls-key are for a server: leave them out",
        ),
        (["--bundle", "b", "--tls-ca", "c"], "--tls-ca is for a server"),
        (
            ["--server", "x:1", "--device", "cpu"],
            "--device, --threads, --workers and --executor work only with --bundle",
        ),
        (
            ["--server", "x:1", "--executor", "reference"],
            "--device, --threads, --workers and --executor work only with",
        ),
        (
            ["--server", "x:1", "--workers", "2"],
            "--device, --threads, --workers and --executor work only with --bundle",
        ),
        (
            ["--server", "x:1", "--threads", "2"],
            "--device, --threads, --workers and --executor work only with --bundle",
        ),
    ],
)
def test_options_of_the_other_place(hmc: Hmc, arguments: list[str], said: str) -> None:
    refused(hmc("translate", *arguments, "a"), said)


def test_negative_threads(hmc: Hmc, tiny_bundle: Path) -> None:
    ran = hmc("translate", "--bundle", tiny_bundle, "--threads", -1, "a")
    assert ran.exit_code == 2
    assert "threads -1: choose 0 (one per physical core) or more" in ran.stderr


@pytest.mark.parametrize("command", [["translate", "a"], ["levels"], ["admin", "load", "h6"]])
@pytest.mark.parametrize("address", ["", "localhost", "http://localhost:1", ":1", "localhost:99999", "::1:1"])
def test_what_cannot_be_an_address(hmc: Hmc, command: list[str], address: str) -> None:
    ran = refused(hmc(*command, "--server", address))
    assert ran.stderr.startswith(f"hmc: server address '{address}': ")
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "closed", "said"),
    [
        (["translate", "--bundle", "BUNDLE"], "<&-", "stdin is closed: give texts as arguments or with --source"),
        (["translate", "--bundle", "BUNDLE", "a"], ">&-", "stdout is closed: send the output to a file or a pipe"),
        (["translate", "--bundle", "BUNDLE", "--incremental", "a"], ">&-", "stdout is closed"),
        (["score", "--bundle", "BUNDLE", "BUNDLE/bundle.json", "BUNDLE/bundle.json"], ">&-", "stdout is closed"),
        (["levels", "BUNDLE"], ">&-", "stdout is closed"),
    ],
)
def test_closed_streams(tiny_bundle: Path, arguments: list[str], closed: str, said: str) -> None:
    given = [a.replace("BUNDLE", str(tiny_bundle)) for a in arguments]
    command = shlex.join([sys.executable, "-m", "hmc.cli", *given])
    ran = subprocess.run(
        ["sh", "-c", f"exec {command} {closed}"], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, text=True, env=environment(), timeout=600, check=False,
    )  # fmt: skip
    assert ran.returncode == 2, ran.stderr
    assert ran.stderr.startswith(f"hmc: {said}")
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.slow
def test_closed_streams_that_are_not_needed(tiny_bundle: Path) -> None:
    command = shlex.join(
        [sys.executable, "-m", "hmc.cli", "translate", "--bundle", str(tiny_bundle), "--beam", "1", "a"]
    )
    ran = subprocess.run(
        ["sh", "-c", f"{command} <&-"], capture_output=True, env=environment(), timeout=600, check=False
    )
    said = b"hmc: text 1: the translation reached its greatest length and may be incomplete\n"
    assert (ran.returncode, ran.stderr) == (0, said)
