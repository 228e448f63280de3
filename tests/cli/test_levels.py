"""`hmc levels`: the levels of a bundle and of a server, with their bytes."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Hmc

from hmc.artifact.bundle import read_manifest
from hmc.serving.client import Client
from hmc.serving.server.background import BackgroundServer


def test_bytes_of_a_bundle_are_told_apart(hmc: Hmc, tiny_bundle: Path) -> None:
    levels = {level["name"]: level for level in json.loads(hmc("levels", tiny_bundle, "--json").stdout)["levels"]}
    for level in read_manifest(tiny_bundle).levels:
        told = levels[level.name]
        assert told["disk"]["own"] + told["disk"]["shared"] == told["bytes"] == level.bytes
        assert told["disk"]["own"] > 0
        assert told["disk"]["shared"] > 0
        assert told["memory"] is None
    table = hmc("levels", tiny_bundle).stdout
    assert "in memory" not in table
    disk = levels["full"]["disk"]
    assert f"{disk['own'] / 2**20:.1f} + {disk['shared'] / 2**20:.1f}" in table


def test_bytes_of_a_server(hmc: Hmc, server: BackgroundServer) -> None:
    with Client(server.address) as client:
        client.unload_level("h12")
    told = json.loads(hmc("levels", "--server", server.address, "--json").stdout)
    assert told["memory_bytes"] > 2**20
    memory = {level["name"]: level["memory"] for level in told["levels"]}
    assert memory == {"full": {"own": 40, "shared": 100}, "h12": None, "h6": {"own": 20, "shared": 100}}
    table = hmc("levels", "--server", server.address).stdout
    assert "MiB in memory" in table
    assert "The server's process has" in table


def test_a_bundle_that_lacks_a_file_names_it(hmc: Hmc, fake_bundle: Path) -> None:
    (fake_bundle / "full" / "decoder.onnx").unlink()
    ran = hmc("levels", fake_bundle)
    assert ran.exit_code == 2
    assert "full/decoder.onnx is missing" in ran.stderr
    assert "Traceback" not in ran.stderr
