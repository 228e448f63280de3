"""Whose credentials are whose, what they open, and how soon: without a server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.serving.fakes import FakeClock

from hmc.artifact import InvalidRequestError
from hmc.artifact.errors import PermissionDeniedError, RateLimitedError, UnauthenticatedError
from hmc.serving.requests.call import SCOPES
from hmc.serving.server.access.gate import AccessGate, Allowance, Credentials, units
from hmc.serving.server.access.tokens import digest, line_of, new_token, read_tokens


def bearer(token: str) -> Credentials:
    return Credentials(f"Bearer {token}")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.toml"
    lines = [
        line_of("news", "n-token", ["translate"], {"texts_per_second": 2.0, "burst": 3, "weight": 2.0}),
        line_of("operator", "o-token", ["admin", "metrics"], {}),
        'tokens.machine = { certificate = "spiffe://example.org/machine", scopes = ["translate"], max_characters = 5 }',
    ]
    path.write_text("\n".join(lines))
    return path


def test_who_calls(file: Path) -> None:
    gate = AccessGate("all-token", file)
    news = gate.admit(bearer("n-token"), "translate")
    assert (news.name, news.weight) == ("news", 2.0)
    assert gate.admit(bearer("o-token"), None).name == "operator"
    assert gate.admit(Credentials("bearer all-token"), "admin").scopes == frozenset(SCOPES)
    machine = gate.admit(Credentials(None, ("spiffe://example.org/machine", "host")), "translate")
    assert (machine.name, machine.max_characters) == ("machine", 5)


@pytest.mark.parametrize(
    "shown",
    [
        bearer(""),
        bearer("n-token2"),
        bearer(digest("n-token")),
        Credentials("n-token"),
        Credentials("Basic n-token"),
        Credentials("Bearer"),
        Credentials(""),
        Credentials("Bearer ü\x00"),
        Credentials("Bearer wrong", ("spiffe://example.org/machine",)),  # a wrong token is not overlooked
    ],
)
def test_who_does_not(file: Path, shown: Credentials) -> None:
    with pytest.raises(UnauthenticatedError, match="the token in `authorization` is not this server's"):
        AccessGate(None, file).admit(shown, "translate")


def test_who_shows_nothing(file: Path) -> None:
    for gate in (AccessGate("t"), AccessGate(None, file)):
        for shown in (Credentials(), Credentials(None, ("another machine",))):
            with pytest.raises(UnauthenticatedError, match="send `authorization: Bearer TOKEN`"):
                gate.admit(shown, None)
    assert AccessGate().admit(Credentials(), "admin").name == ""
    assert AccessGate().admit(Credentials(None, ("host",)), "admin").name == "host"


def test_scopes(file: Path) -> None:
    gate = AccessGate(None, file)
    with pytest.raises(PermissionDeniedError, match="'news' may not do this: it needs the scope admin, and has trans"):
        gate.admit(bearer("n-token"), "admin")
    with pytest.raises(PermissionDeniedError, match="scope translate, and has admin, metrics"):
        gate.admit(bearer("o-token"), "translate")


def test_an_allowance_fills_up_with_time() -> None:
    clock = FakeClock()
    allowance = Allowance(2.0, 3, clock)
    assert [allowance.take(1) for _ in range(4)] == [0, 0, 0, 0.5]
    clock.now += 0.5
    assert [allowance.take(1), allowance.take(1)] == [0, 0.5]
    clock.now += 100.0  # and no higher than the burst
    assert [allowance.take(2), allowance.take(2)] == [0, 0.5]


def test_a_call_larger_than_the_burst_passes_and_leaves_a_debt() -> None:
    clock = FakeClock()
    allowance = Allowance(2.0, 3, clock)
    assert allowance.take(7) == 0
    assert allowance.take(1) == pytest.approx(2.5)  # 4 of debt and 1, at 2 a second
    clock.now += 2.5
    assert allowance.take(1) == 0


def test_long_texts_count_more() -> None:
    assert units([0, 1, 1000, 1001, 5000]) == 1 + 1 + 1 + 2 + 5


def test_a_rate_is_the_callers_own(file: Path) -> None:
    gate = AccessGate(None, file)
    news, operator = gate.admit(bearer("n-token"), None), gate.admit(bearer("o-token"), None)
    gate.charge(news, 100)
    with pytest.raises(
        RateLimitedError, match=r"'news' may send 2 texts a second, 3 at once, .* try again in \d+ ms"
    ) as e:
        gate.charge(news, 1)
    assert 0 < (e.value.retry_after_s or 0) <= 49
    gate.charge(operator, 10**9)


def test_pacing_waits_as_long_as_charging_says(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, clock = AccessGate(None, file), FakeClock()
    news = gate.admit(bearer("n-token"), None)
    gate._allowances["news"] = Allowance(2.0, 3, clock)
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        clock.now += seconds

    monkeypatch.setattr(asyncio, "sleep", sleep)

    async def send() -> None:
        for _ in range(5):
            await gate.pace(news, 1)

    asyncio.run(send())
    assert waits == [0.5, 0.5]


def test_a_file_that_changes(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    gate = AccessGate(None, file)
    before = file.read_text()
    gate.refresh()
    assert gate.version == 0
    file.write_text(before.replace("news", "daily"))
    gate.refresh()
    assert (gate.version, gate.admit(bearer("n-token"), None).name) == (1, "daily")
    for broken, said in (("tokens = 3", "Input should be a valid dictionary"), ("tokens.", "cannot be read")):
        file.write_text(broken)
        gate.refresh()
        gate.refresh()
        assert gate.admit(bearer("n-token"), None).name == "daily"
        assert [said in record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [True]
        caplog.clear()
    file.unlink()
    gate.refresh()
    assert "stays in force: tokens: cannot read" in caplog.text
    file.write_text(before)
    gate.refresh()
    assert (gate.version, gate.admit(bearer("n-token"), None).name) == (2, "news")


def test_json_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(f'{{"tokens": {{"a": {{"sha256": "{digest("t")}", "scopes": ["metrics"]}}}}}}')
    assert AccessGate(None, path).admit(bearer("t"), "metrics").name == "a"


HASH = "0" * 64


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "tokens: Field required"),
        ("tokens = {}", "at least 1 item"),
        ("token = 3", "token: Extra inputs are not permitted"),
        ('tokens.a = { scopes = ["admin"] }', "tokens.a: Value error, give exactly one of sha256 and certificate"),
        (f'tokens.a = {{ sha256 = "{HASH}", certificate = "x", scopes = ["admin"] }}', "exactly one of"),
        (f'tokens.a = {{ sha256 = "{HASH}", scopes = [] }}', "tokens.a.scopes: "),
        (f'tokens.a = {{ sha256 = "{HASH}", scopes = ["root"] }}', "'translate', 'admin' or 'metrics'"),
        ('tokens.a = { sha256 = "secret", scopes = ["admin"] }', "tokens.a.sha256: String should match"),
        (f'tokens.a = {{ sha256 = "{HASH}", scopes = ["admin"], wieght = 2 }}', "tokens.a.wieght: Extra inputs"),
        (f'tokens.a = {{ sha256 = "{HASH}", scopes = ["admin"], burst = 2 }}', "burst needs texts_per_second"),
        (f'tokens.a = {{ sha256 = "{HASH}", scopes = ["admin"], weight = nan }}', "tokens.a.weight: "),
        (f'tokens."a\\nb" = {{ sha256 = "{HASH}", scopes = ["admin"] }}', "String should match pattern"),
        ("\n".join(f'tokens.{n} = {{ sha256 = "{HASH}", scopes = ["admin"] }}' for n in "ab"), "a and b have the same"),
    ],
)
def test_files_of_no_use(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(content)
    with pytest.raises(InvalidRequestError) as caught:
        read_tokens(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)
    assert "secret" not in str(caught.value)


def test_new_tokens_differ_and_can_be_sent() -> None:
    made = {new_token() for _ in range(100)}
    assert len(made) == 100
    assert all(token.isascii() and token.isprintable() and len(token) >= 43 for token in made)
