"""The programs of examples/clients, run against a real server: with and without TLS, with a token, and refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.processes import REPOSITORY, environment
from tests.serving.certificates import make_certificate
from tests.serving.fakes import FakeFactory, write_bundle

from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings

EXAMPLES = REPOSITORY / "examples" / "clients"
TOKEN = "a token of the tests"
GO_SOURCES, JARS = Path("/usr/share/gocode/src/google.golang.org/grpc"), Path("/usr/share/java")
Built = Callable[[Path], list[str]]


def _needs(*tools: str) -> None:
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")


def _build(name: str, folder: Path) -> None:
    subprocess.run(["bash", str(EXAMPLES / name / "build.sh"), str(folder)], check=True, timeout=1500)


def python(folder: Path) -> list[str]:
    return [sys.executable, str(EXAMPLES / "python" / "client.py")]


def node(folder: Path) -> list[str]:
    _needs("node")
    if not (EXAMPLES / "node" / "node_modules").is_dir():
        pytest.skip("needs `npm ci` in examples/clients/node")
    return ["node", str(EXAMPLES / "node" / "client.mjs")]


def curl(folder: Path) -> list[str]:
    _needs("bash", "curl", "jq")
    return ["bash", str(EXAMPLES / "curl" / "client.sh")]


def go(folder: Path) -> list[str]:
    _needs("go", "protoc", "protoc-gen-go", "protoc-gen-go-grpc")
    if not GO_SOURCES.is_dir():
        pytest.skip("needs gRPC for Go: apt-get install golang-google-grpc-dev")
    _build("go", folder)
    return [str(folder / "client")]


def java(folder: Path) -> list[str]:
    _needs("java", "javac", "protoc", "grpc_java_plugin")
    if not all((JARS / f"{jar}.jar").is_file() for jar in ("grpc-api", "netty-all", "perfmark-api", "protobuf")):
        pytest.skip("needs gRPC for Java: apt-get install libgrpc-java libnetty-java libperfmark-java")
    _build("java", folder)
    return ["java", "-cp", f"{folder / 'client.jar'}:{JARS}/*", "Client"]


SLOW = (pytest.mark.slow, pytest.mark.timeout(1800))  # they are compiled first


@pytest.fixture(
    scope="module", params=[python, node, curl, pytest.param(go, marks=SLOW), pytest.param(java, marks=SLOW)]
)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command line of one example."""
    build: Built = request.param
    return build(tmp_path_factory.mktemp(build.__name__))


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "bundle")


@pytest.fixture
def plain(bundle: Path) -> Iterator[BackgroundServer]:
    with BackgroundServer(bundle, ServerSettings(port=0, http_port=0, token=TOKEN), FakeFactory()) as running:
        yield running


def run(
    program: list[str], server: BackgroundServer, *texts: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    assert server.server is not None
    address = str(server.server.http_address) if program[-1].endswith(".sh") else server.address
    kept = environment(**variables)
    kept = {name: value for name, value in kept.items() if not name.startswith("HMC_") or name in variables}
    return subprocess.run(
        [*program, address, *texts], capture_output=True, text=True, timeout=600, check=False, env=kept
    )


def test_texts_are_translated(program: list[str], plain: BackgroundServer) -> None:
    ran = run(program, plain, "A dog.", "Zwölf", HMC_TOKEN=TOKEN)
    assert ran.returncode == 0, ran.stderr
    expected = ["call\tfull:A dog.", "stream\tfull:A dog.", "stream\tfull:Zwölf"]
    if program[-1].endswith(".sh"):  # curl sends all texts at once, and streams the tokens of the first
        expected = ["call\tfull:A dog.", "call\tfull:Zwölf", "stream\tfull:A dog."]
    assert ran.stdout.splitlines() == expected


def test_a_call_without_the_token_fails(program: list[str], plain: BackgroundServer) -> None:
    ran = run(program, plain, "A dog.")
    assert ran.returncode != 0
    assert "call" not in ran.stdout.split("\t")
    assert "UNAUTHENTICATED" in ran.stderr.upper() or "401" in ran.stderr


def test_tls(program: list[str], bundle: Path, tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    settings = ServerSettings(port=0, http_port=0, token=TOKEN, tls_cert=cert, tls_key=key)
    with BackgroundServer(bundle, settings, FakeFactory()) as server:
        ran = run(program, server, "A dog.", HMC_TOKEN=TOKEN, HMC_CA=str(cert))
    if program[0] == "java" and "ALPN" in ran.stderr:
        pytest.skip("Debian's Netty speaks no TLS with HTTP/2 on this JDK")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["call\tfull:A dog.", "stream\tfull:A dog."]


def test_a_wrong_command_line_says_how_to_call_it(program: list[str]) -> None:
    ran = subprocess.run(program, capture_output=True, text=True, timeout=600, check=False, env=environment())
    assert ran.returncode in (1, 2)
    assert "HOST:PORT" in ran.stderr or "URL" in ran.stderr


def test_the_lock_file_belongs_to_the_package() -> None:
    package = json.loads((EXAMPLES / "node" / "package.json").read_text())
    locked = json.loads((EXAMPLES / "node" / "package-lock.json").read_text())
    assert locked["packages"][""]["dependencies"] == package["dependencies"]
