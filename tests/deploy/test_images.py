"""The files for images and the Compose file: linted, valid by schema, and in agreement with the server."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.processes import REPOSITORY

from hmc.serving.server.settings import ServerSettings

DEPLOY = REPOSITORY / "deploy"
COMPOSE = DEPLOY / "compose" / "compose.yaml"
DOCKERFILES = sorted((DEPLOY / "docker").glob("*.Dockerfile"))
SERVERS = [path for path in DOCKERFILES if path.stem in ("cpu", "cuda")]


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture
def hadolint() -> Path:
    found = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if found is None:
        pytest.skip("hadolint is not installed")
    return Path(found)


@pytest.fixture
def compose() -> Any:
    return yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))


def test_dockerfiles_by_hadolint(hadolint: Path) -> None:
    assert len(DOCKERFILES) == 3
    ran = run(hadolint, *DOCKERFILES)
    assert ran.returncode == 0, ran.stdout


def test_hadolint_would_object(hadolint: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "Dockerfile"
    wrong.write_text("FROM debian\nRUN cd /tmp\n")
    assert "DL3006" in run(hadolint, wrong).stdout


@pytest.mark.parametrize("path", SERVERS, ids=lambda path: path.stem)
def test_images_of_servers(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(re.findall(r"^FROM ", text, re.MULTILINE)) == 2
    assert re.search(r"^ARG BASE=\S+:\S+$", text, re.MULTILINE)
    assert re.search(r"^USER \d+:\d+$", text, re.MULTILINE)
    environment = dict(re.findall(r"HMC_(\w+)=(\S+)", text))
    assert int(environment["PORT"]) == ServerSettings().port
    assert f"\nEXPOSE {environment['PORT']} {environment['METRICS_PORT']}\n" in text
    assert f'VOLUME ["{environment["CACHE"]}"]' in text
    assert "CMD hmc health --server" in text


def test_only_what_images_need_is_sent_to_the_builder() -> None:
    lines = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert lines[1:] == ["*", "!constraints.txt", "!dist/*.whl"]


def test_compose_by_its_schema() -> None:
    pytest.importorskip("check_jsonschema", reason="check-jsonschema is not installed")
    ran = run(sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", COMPOSE)
    assert ran.returncode == 0, ran.stdout


def test_compose_runs_the_image_without_rights(compose: Any) -> None:
    server = compose["services"]["hmc"]
    assert server["read_only"]
    assert server["cap_drop"] == ["ALL"]
    (drain,) = [argument for argument in server["command"] if argument.startswith("--drain-seconds=")]
    assert int(server["stop_grace_period"].removesuffix("s")) > int(drain.partition("=")[2])
    published = [port for service in compose["services"].values() for port in service["ports"]]
    assert all(port.startswith("127.0.0.1:") for port in published)
    (http,) = [argument.partition("=")[2] for argument in server["command"] if argument.startswith("--http-port=")]
    assert [port.rpartition(":")[2] for port in server["ports"]] == ["50051", http]
    folder = COMPOSE.parent / server["build"]["context"]
    assert (folder / server["build"]["dockerfile"]).is_file()


def test_compose_mounts_files_that_there_are(compose: Any) -> None:
    files = {name: COMPOSE.parent / config["file"] for name, config in compose["configs"].items()}
    assert all(path.is_file() for path in files.values()), files
    used = {config["source"] for service in compose["services"].values() for config in service.get("configs", ())}
    assert used == set(files)
    (provider,) = yaml.safe_load(files["dashboards"].read_text(encoding="utf-8"))["providers"]
    targets = {c["source"]: Path(c["target"]) for c in compose["services"]["grafana"]["configs"]}
    assert targets["dashboard"].parent == Path(provider["options"]["path"])


@pytest.mark.parametrize("path", ["compose/prometheus.yaml", "kubernetes/monitoring/scrape.yaml"])
def test_prometheus_by_promtool(path: str, tmp_path: Path) -> None:
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool is not installed")
    text = (DEPLOY / path).read_text(encoding="utf-8").replace("/etc/prometheus", str(tmp_path))
    (tmp_path / "prometheus.yaml").write_text(text)
    (tmp_path / "hmc-token").write_text("token\n")
    shutil.copy(REPOSITORY / "examples" / "monitoring" / "alerts.yaml", tmp_path)
    ran = run(promtool, "check", "config", tmp_path / "prometheus.yaml")
    assert ran.returncode == 0, ran.stdout + ran.stderr
