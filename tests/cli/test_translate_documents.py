"""`hmc translate --document` against a real server, and against a real bundle."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import Hmc
from tests.command import refused

from hmc.serving.server.background import BackgroundServer

TEXT = "# Title\r\n\r\n- A dog. A cat.\r\n"


def test_the_layout_stays(hmc: Hmc, server: BackgroundServer, tmp_path: Path) -> None:
    (tmp_path / "in.md").write_bytes(TEXT.encode())
    made = "# full:Title\r\n\r\n- full:A dog. full:A cat.\r\n"
    for ran in (
        hmc("translate", "--server", server.address, "--document", "--source", tmp_path / "in.md"),
        hmc("translate", "--server", server.address, "--document", stdin=TEXT.encode()),
    ):
        assert (ran.exit_code, ran.stdout_bytes) == (0, made.encode())


def test_a_bundle_keeps_what_expressions_match(hmc: Hmc, tiny_bundle: Path) -> None:
    ran = hmc(
        "translate", "--bundle", tiny_bundle, "--threads", 1, "--document", "--max-length", 8,
        "--keep", r"https?://\S+", "--keep", r"\{\w+\}", stdin=b"Go to https://a.de/x now.\n\nHello {name} and {id}!\n",
    )  # fmt: skip
    assert ran.exit_code == 0
    first, blank, second, end = ran.stdout.split("\n")
    assert (first.count("https://a.de/x"), blank, second.count("{name}"), second.count("{id}"), end) == (
        1,
        "",
        1,
        1,
        "",
    )


@pytest.mark.parametrize(
    ("arguments", "stdin", "said"),
    [
        (["--document", "a"], b"", "texts on the command line need no --document"),
        (["--document", "--json"], b"", "--document does not work with"),
        (["--document", "--keep", "("], b"a", "is no regular expression"),
        (["--keep", "a"], b"a", "--keep needs --document"),
        (["--document"], b"a\xff", "stdin is not UTF-8: byte 0xff at offset 1"),
        (["--document", "--source", "/no/file"], b"", "cannot read /no/file"),
    ],
)
def test_refusals(hmc: Hmc, server: BackgroundServer, arguments: list[str], stdin: bytes, said: str) -> None:
    ran = refused(hmc("translate", "--server", server.address, *arguments, stdin=stdin))
    assert said in " ".join(ran.stderr.split())
