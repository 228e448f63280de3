"""A client in another language, which knows the service from server reflection only."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from hmc.serving import Translator
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings

FOLDER = Path(__file__).with_name("node")
pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or not (FOLDER / "node_modules").is_dir(),
    reason="needs Node, and `npm ci` in tests/clients/node",
)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["node", "client.mjs", *arguments], cwd=FOLDER, capture_output=True, text=True, timeout=600, check=False
    )


def test_levels_and_a_translation_at_two_of_them(tiny_bundle: Path) -> None:
    text = "A man rides a bicycle."
    with BackgroundServer(tiny_bundle, ServerSettings(port=0, device="cpu")) as server:
        ran = run(server.address, text, "full", "h12-int8")
        refused = run(server.address, text, "nope")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    printed = json.loads(ran.stdout)
    assert {"hmc.v1.TranslationService", "grpc.health.v1.Health"} <= set(printed["services"])
    assert {"full", "h12", "full-int8", "h12-int8"} <= {level["name"] for level in printed["levels"]}
    for translation in printed["translations"]:
        with Translator(tiny_bundle, translation["level"], device="cpu") as translator:
            assert translation["text"] == translator.translate([text])[0].text
    assert [t["level"] for t in printed["translations"]] == ["full", "h12-int8"]
    assert refused.returncode == 1
    assert json.loads(refused.stdout)["error"]["code"] == "NOT_FOUND"
