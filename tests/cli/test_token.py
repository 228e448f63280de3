"""`hmc token new`, and a server that takes what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Hmc
from tests.serving.fakes import FakeFactory

from hmc.serving.server.access.tokens import digest, read_tokens
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings


def test_a_token_and_its_line(hmc: Hmc, fake_bundle: Path, factory: FakeFactory, tmp_path: Path) -> None:
    made = [
        json.loads(hmc("token", "new", name, "--scope", scope, *limits, "--json").stdout)
        for name, scope, *limits in (
            ("news", "translate", "--texts-per-second", "5", "--burst", "9", "--max-characters", "99", "--weight", "2"),
            ("operator", "admin", "--scope", "metrics"),
        )
    ]
    file = tmp_path / "tokens.toml"
    file.write_text("\n".join(x["line"] for x in made))
    entries = read_tokens(file).tokens
    news = entries["news"]
    assert (news.texts_per_second, news.burst, news.max_characters, news.weight) == (5.0, 9, 99, 2.0)
    assert entries["operator"].scopes == {"admin", "metrics"}
    assert all(x["token"] not in file.read_text() for x in made)
    with BackgroundServer(fake_bundle, ServerSettings(port=0, tokens=file), factory) as server:
        news_token, operator_token = (x["token"] for x in made)
        assert hmc("translate", "a", "--server", server.address, "--token", news_token).stdout == "full:a\n"
        ran = hmc("admin", "load", "h6", "--server", server.address, "--token", news_token)
        assert (ran.exit_code, "'news' may not do this: it needs the scope admin" in ran.stderr) == (2, True)
        assert hmc("admin", "load", "h6", "--server", server.address, "--token", operator_token).exit_code == 0


def test_what_is_printed_for_people(hmc: Hmc) -> None:
    lines = hmc("token", "new", "a-b_1", "--scope", "translate").stdout.splitlines()
    assert lines[0] == "Token of a-b_1, shown this once:"
    assert lines[1].startswith("hmc_")
    assert lines[-1].startswith('tokens.a-b_1 = { sha256 = "')


def test_the_token_and_its_line_go_to_files(hmc: Hmc, tmp_path: Path) -> None:
    tokens, secret = tmp_path / "tokens.toml", tmp_path / "website"
    files = ("--out", secret, "--append", tokens)
    said = hmc("token", "new", "website", "--scope", "translate", *files).stdout
    token = secret.read_text().strip()
    assert token.startswith("hmc_")
    assert token not in said + tokens.read_text()
    assert [path.stat().st_mode & 0o777 for path in (secret, tokens)] == [0o600, 0o600]
    hmc("token", "new", "metrics", "--scope", "metrics", "--append", tokens)
    assert list(read_tokens(tokens).tokens) == ["website", "metrics"]
    assert read_tokens(tokens).tokens["website"].sha256 == digest(token)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--out", "taken"], "--out taken exists, and may be a token in use; name a new file"),
        (["--append", "tokens.toml"], "--append tokens.toml: it has a token 'website'; choose another name"),
        (["--append", "tokens.json"], "--append tokens.json: lines are added to TOML"),
        (["--out", "new", "--json"], "--json does not work with --out: leave one of them out"),
    ],
)
def test_files_that_are_there_stay(
    hmc: Hmc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    hmc("token", "new", "website", "--scope", "translate", "--append", "tokens.toml")
    Path("taken").write_text("former")
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert said in hmc("token", "new", "website", "--scope", "translate", *words).stderr
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a.b", "--scope", "translate"], "hmc: name 'a.b': choose 1 to 64 letters, digits, - and _\n"),
        (["a b", "--scope", "translate"], "name 'a b': choose 1 to 64 letters"),
        (["a", "--scope", "root"], "--scope root: choose translate, admin, metrics"),
        (
            ["a", "--scope", "admin", "--burst", "2"],
            "--burst: it is about --texts-per-second; add that, or leave burst out",
        ),
        (["a", "--scope", "admin", "--weight", "0"], "--weight 0: choose a number above 0"),
        (["a", "--scope", "admin", "--texts-per-second", "nan"], "--texts-per-second nan: choose a number above 0"),
        (["a", "--scope", "admin", "--max-characters", "0"], "--max-characters 0: choose 1 or more"),
    ],
)
def test_words_of_no_use(hmc: Hmc, words: list[str], said: str) -> None:
    ran = hmc("token", "new", *words)
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert said in ran.stderr
