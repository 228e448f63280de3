"""The Kubernetes manifests: valid by Kubernetes' own schemas, and in agreement with the server that they run."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from tests.command import done, run_hmc
from tests.processes import REPOSITORY
from tests.serving.fakes import write_bundle

from hmc.serving.server.app import open_models
from hmc.serving.server.health import model_health
from hmc.serving.server.settings import ServerSettings

KUBERNETES = REPOSITORY / "deploy" / "kubernetes"
NATIVE = [*sorted(KUBERNETES.glob("*.yaml")), KUBERNETES / "autoscaling" / "cpu.yaml"]
VERSIONS = ("1.30", "1.37")
"""The oldest Kubernetes that has everything that the manifests use, and the newest one whose schemas are known."""


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def deployment() -> Any:
    return read(KUBERNETES / "deployment.yaml")


@pytest.fixture
def pod(deployment: Any) -> Any:
    return deployment["spec"]["template"]["spec"]


@pytest.fixture
def container(pod: Any) -> Any:
    (only,) = pod["containers"]
    return only


@pytest.fixture
def settings(container: Any, tmp_path: Path) -> dict[str, Any]:
    """The settings of the server that the Deployment starts, in the environment of the image."""
    (tmp_path / "tokens.toml").write_text(f'tokens.a = {{ sha256 = "{"0" * 64}", scopes = ["translate"] }}\n')
    arguments = [argument.replace("/etc/hmc/tokens", str(tmp_path)) for argument in container["args"]]
    ran = done(run_hmc([*arguments, "--print-config", "--json"], env=image_environment()))
    return dict(json.loads(ran.stdout))


def image_environment() -> dict[str, str]:
    text = (REPOSITORY / "deploy" / "docker" / "cpu.Dockerfile").read_text(encoding="utf-8")
    return dict(re.findall(r"(HMC_\w+)=(\S+)", text))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", NATIVE, ids=lambda path: path.stem)
def test_manifests_are_valid(path: Path, version: str) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    validator.validate(read(path), version, strict=True)


def test_an_unknown_field_would_be_found(deployment: Any) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    wrong = copy.deepcopy(deployment)
    wrong["spec"]["template"]["spec"]["containers"][0]["livenessprobe"] = {}
    with pytest.raises(validator.ValidationError, match="livenessprobe"):
        validator.validate(wrong, VERSIONS[-1], strict=True)


def test_everything_is_about_the_same_pods(deployment: Any) -> None:
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    selectors = [deployment["spec"]["selector"]["matchLabels"], read(KUBERNETES / "service.yaml")["spec"]["selector"]]
    selectors += [read(KUBERNETES / "metrics.yaml")["spec"]["selector"]]
    selectors += [read(KUBERNETES / "disruption.yaml")["spec"]["selector"]["matchLabels"]]
    selectors += [read(KUBERNETES / "network.yaml")["spec"]["podSelector"]["matchLabels"]]
    assert selectors == [labels] * 5
    for scaler in ("cpu", "queue"):
        target = read(KUBERNETES / "autoscaling" / f"{scaler}.yaml")["spec"]["scaleTargetRef"]
        assert target["name"] == deployment["metadata"]["name"]


def test_the_server_has_the_ports_and_the_time_that_the_pod_gives(
    pod: Any, container: Any, settings: dict[str, Any]
) -> None:
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == {
        "grpc": settings["port"],
        "http": settings["http_port"],
        "metrics": settings["metrics_port"],
    }
    waits = container["lifecycle"]["preStop"]["sleep"]["seconds"] + settings["drain_seconds"]
    assert pod["terminationGracePeriodSeconds"] >= waits + 5


def test_probes_ask_for_health_that_there_is(container: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    models = open_models({"": write_bundle(tmp_path / "bundle")}, ServerSettings())
    known = model_health(models)
    probes = {name: container[f"{name}Probe"]["grpc"] for name in ("startup", "readiness", "liveness")}
    assert {probe["port"] for probe in probes.values()} == {settings["port"]}
    assert all(probe.get("service", "") in known for probe in probes.values())
    assert known[probes["liveness"]["service"]]  # even while no level serves
    assert "tls_cert" not in settings  # these probes speak no TLS


def test_the_container_may_do_nothing(pod: Any, container: Any, settings: dict[str, Any]) -> None:
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    user = f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}"
    assert f"\nUSER {user}\n" in (REPOSITORY / "deploy" / "docker" / "cpu.Dockerfile").read_text(encoding="utf-8")
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {settings["cache"], str(Path(settings["admin_address"].removeprefix("unix:")).parent)}
    assert settings["tokens"]


def test_the_page_and_the_http_api_can_be_reached() -> None:
    ports = {port["name"]: port["targetPort"] for port in read(KUBERNETES / "service.yaml")["spec"]["ports"]}
    assert ports == {"grpc": "grpc", "http": "http"}
    clients, _ = read(KUBERNETES / "network.yaml")["spec"]["ingress"]
    assert [port["port"] for port in clients["ports"]] == ["grpc", "http"]


def test_prometheus_sees_the_servers_that_are_not_ready() -> None:
    """Else the alerts that page for them would lack their samples."""
    service = read(KUBERNETES / "metrics.yaml")
    (job,) = read(KUBERNETES / "monitoring" / "scrape.yaml")["scrape_configs"]
    (found,) = job["dns_sd_configs"]
    assert service["spec"]["publishNotReadyAddresses"]
    assert found["names"] == [f"{service['metadata']['name']}.default.svc.cluster.local"]
    assert found["port"] == service["spec"]["ports"][0]["port"]


def test_the_queue_is_one_that_servers_report() -> None:
    (trigger,) = read(KUBERNETES / "autoscaling" / "queue.yaml")["spec"]["triggers"]
    query = trigger["metadata"]["query"]
    promql_parser.parse(query)
    (metric,) = re.findall(r"hmc_\w+", query)
    page = (REPOSITORY / "docs" / "serving-reference.md").read_text(encoding="utf-8")
    assert f"| `{metric}` |" in page  # tests of the page compare it with a running server
    (job,) = read(KUBERNETES / "monitoring" / "scrape.yaml")["scrape_configs"]
    assert f'job="{job["job_name"]}"' in query
