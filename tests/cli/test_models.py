"""Several models in one server, from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.artifact.marian.opus import opus_directory
from tests.cli.conftest import Hmc
from tests.cli.test_serve import serving
from tests.serving.fakes import FakeFactory, write_bundle
from tests.tiny import SENTENCES

from hmc.artifact import save_checkpoint
from hmc.artifact.marian.reader import import_marian
from hmc.compiler import LevelRequest, compile_bundle
from hmc.serving.client import Client
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings


@pytest.fixture
def server(tmp_path: Path, factory: FakeFactory) -> Iterator[BackgroundServer]:
    bundles = {
        "en-de": write_bundle(tmp_path / "a", version="german"),
        "fr-en": write_bundle(tmp_path / "b", version="english", languages=("fr", "en")),
    }
    with BackgroundServer(bundles, ServerSettings(port=0), factory) as running:
        yield running


@pytest.mark.parametrize(
    ("options", "version"),
    [
        ([], "german"),
        (["--model", "fr-en"], "english"),
        (["--to", "eng"], "english"),
        (["--from", "en"], "german"),
    ],
)
def test_translate_chooses_a_model(hmc: Hmc, server: BackgroundServer, options: list[str], version: str) -> None:
    ran = hmc("translate", "--server", server.address, *options, "--json", "a")
    assert json.loads(ran.stdout)["bundle_version"] == version


def test_levels_and_admin_are_about_a_model(hmc: Hmc, server: BackgroundServer) -> None:
    where = ("--server", server.address, "--model", "fr-en")
    assert "h6 is the default level" in hmc("admin", "default", "h6", *where).stdout
    assert "full is unloaded" in hmc("admin", "unload", "full", *where).stdout
    listed = json.loads(hmc("levels", *where, "--json").stdout)
    assert [(x["name"], x["loaded"], x["is_default"]) for x in listed["levels"]] == [
        ("full", False, False), ("h12", True, False), ("h6", True, True),
    ]  # fmt: skip
    assert hmc("admin", "reload", *where).stdout == "Bundle english serves.\n"
    ran = hmc("levels", "--server", server.address, "--model", "x")
    assert (ran.exit_code, ran.stderr) == (2, "hmc: unknown model 'x'; this server has: en-de, fr-en\n")


def test_a_bundle_is_one_model(hmc: Hmc, tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "a")
    for command in (["levels", bundle], ["translate", "a", "--bundle", bundle]):
        ran = hmc(*command, "--model", "x")
        assert (ran.exit_code, ran.stderr) == (2, "hmc: --model needs --server: a bundle holds only one model\n")


def test_a_bundle_translates_into_the_language_that_is_asked_for(hmc: Hmc, tmp_path: Path) -> None:
    opus_directory(tmp_path / "opus")
    save_checkpoint(import_marian(tmp_path / "opus"), tmp_path / "checkpoint")
    compile_bundle([LevelRequest(tmp_path / "checkpoint")], tmp_path / "bundle")
    where = ("--bundle", tmp_path / "bundle", "--device", "cpu", "--threads", "1", "--max-length", "5", "--json")
    (plain, coded) = (
        json.loads(hmc("translate", *where, *to, SENTENCES[0]).stdout)["source_tokens"] for to in ([], ["--to", "de"])
    )
    assert coded == plain + 1
    assert "this model has de, nl" in hmc("translate", *where, "--to", "fr", "a").stderr
    assert "this bundle translates en → de, nl" in hmc("translate", *where, "--from", "fr", "a").stderr


@pytest.mark.slow
def test_two_bundles_are_served(tiny_bundle: Path) -> None:
    given = (f"one={tiny_bundle}", f"two={tiny_bundle}", "--lazy", "--memory", "1GiB", "--idle-unload", "600")
    with serving(*given, "--device", "cpu") as (_, said), Client(str(said["address"])) as client:
        assert said["models"] == {"one": ["full"], "two": []}
        assert client.translate(["A dog."], "h12", model="two").level == "h12"
        assert [model.name for model in client.models()] == ["one", "two"]


def test_what_cannot_be_served_is_said_at_once(fails: Callable[..., str], tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "a")
    said = fails(f"x={bundle}", f"x={bundle}", f"y={tmp_path / 'gone'}")
    assert "'x' is the name of" in said
    assert f"{tmp_path / 'gone'}: {tmp_path / 'gone'} does not exist" in said
