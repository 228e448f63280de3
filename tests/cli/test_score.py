"""`hmc score` against a real server, and against a real bundle."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.conftest import Hmc
from tests.command import done, refused
from tests.support.files import write_lines

from hmc.artifact.errors import FailedPreconditionError
from hmc.cli.common.backends import open_backend
from hmc.cli.common.options import BackendOptions
from hmc.serving import DecodeOptions
from hmc.serving.client import Client
from hmc.serving.server.background import BackgroundServer


def test_scores_of_given_translations(hmc: Hmc, server: BackgroundServer, tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "src").write_text("A man.\nTwo dogs run.\n")
    (tmp_path / "ref").write_text("Two dogs run.\nA man.\n")
    ran = done(hmc("score", tmp_path / "src", tmp_path / "ref", "--bundle", tiny_bundle))
    scores = [float(line) for line in ran.stdout.splitlines()]
    assert len(scores) == 2
    assert max(scores) < 0
    ran = hmc("score", tmp_path / "src", tmp_path / "ref", "--bundle", tiny_bundle, "--json", "--token-scores")
    records = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [r["score"] for r in records] == pytest.approx(scores, abs=1e-5)
    assert [r["translation"] for r in records] == ["Two dogs run.", "A man."]
    assert records[1]["tokens"][-1]["piece"] == "</s>"
    ran = hmc("score", tmp_path / "src", tmp_path / "ref", "--server", server.address, "--level", "h6", "--json")
    assert json.loads(ran.stdout.splitlines()[0])["translation"] == "h6:A man.|Two dogs run.|given"
    (tmp_path / "ref").write_text("one\n")
    refused(hmc("score", tmp_path / "src", tmp_path / "ref", "--bundle", tiny_bundle), "has 2 lines and")


def test_penalties_count(hmc: Hmc, tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "src").write_text("A man.\nTwo dogs run.\n")
    (tmp_path / "ref").write_text("dogs dogs dogs\nA man A man.\n")

    def scores(*penalties: str | float) -> list[float]:
        ran = done(hmc("score", tmp_path / "src", tmp_path / "ref", "--bundle", tiny_bundle, *penalties))
        return [float(line) for line in ran.stdout.splitlines()]

    plain = scores()
    covered = scores("--coverage-penalty", 0.2)  # 0 for a source that is attended to everywhere, else negative
    assert all(a <= b for a, b in zip(covered, plain, strict=True))
    assert covered != plain
    assert all(abs(a - b) > 1e-3 for a, b in zip(scores("--repetition-penalty", 1.3), plain, strict=True))


@pytest.mark.parametrize(
    ("selector", "level"),
    [
        ([], "full"),
        (["--level", "h6"], "h6"),
        (["--max-heads", 12], "h12"),
        (["--max-bleu-drop", 0.3], "h12"),
        (["--max-bleu-drop", 1], "h6"),
        (["--latency-budget-ms", 100], "h12"),  # calls of many texts
        (["--auto"], "full"),
    ],
)
def test_every_selector(
    hmc: Hmc, server: BackgroundServer, tmp_path: Path, selector: list[str | float], level: str
) -> None:
    (tmp_path / "text").write_text("a dog\n" * 70)
    ran = done(hmc("score", tmp_path / "text", tmp_path / "text", "--server", server.address, "--json", *selector))
    assert [json.loads(line)["level"] for line in ran.stdout.splitlines()] == [level] * 70


@pytest.mark.parametrize(
    ("selector", "said"),
    [
        (["--auto", "--level", "h6"], "--level and --auto each choose the level: give one of them"),
        (["--max-bleu-drop", -1], "--max-bleu-drop -1.0: choose 0 or more BLEU points"),
        (["--latency-budget-ms", 2], "within 2 ms now; the fastest is 'h6' with about 10 ms"),
    ],
)
def test_selectors_that_choose_nothing(
    hmc: Hmc, server: BackgroundServer, tmp_path: Path, selector: list[str | float], said: str
) -> None:
    (tmp_path / "text").write_text("a dog\n")
    refused(hmc("score", tmp_path / "text", tmp_path / "text", "--server", server.address, *selector), said)


@pytest.mark.parametrize("chosen", [BackendOptions(max_heads=12), BackendOptions(latency_budget_ms=20)])
def test_the_level_is_chosen_once_for_all_lines(server: BackgroundServer, chosen: BackendOptions) -> None:
    options = DecodeOptions(beam_size=1)
    with open_backend(replace(chosen, server=server.address)) as backend, Client(server.address) as client:
        assert backend.score(["a"], ["b"], options)[0].level == "h12"
        client.unload_level("h12")
        assert client.translate(["a"], chosen.selector()).level == "h6"
        with pytest.raises(FailedPreconditionError, match="level 'h12' is not loaded; load it with `hmc admin load`"):
            backend.score(["a"], ["b"], options)


@pytest.mark.parametrize("place", ["--bundle", "--server"])
def test_a_reference_that_is_too_long_is_named_by_its_line(
    hmc: Hmc, server: BackgroundServer, tiny_bundle: Path, tmp_path: Path, place: str
) -> None:
    lines = [*["a dog"] * 69, "dog " * 20_000]
    write_lines(tmp_path / "text", lines)
    where = str(tiny_bundle) if place == "--bundle" else server.address
    ran = refused(hmc("score", tmp_path / "text", tmp_path / "text", place, where))
    assert ran.stderr.startswith("hmc: line 70")
