"""The dashboard, the alerts and the page of metrics name only what running servers export, and the page names all."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from tests.processes import REPOSITORY
from tests.serving.fakes import FactoryOnDevices
from tests.support.metrics import scrape
from tests.tiny import SENTENCES

from hmc.artifact import HmcError
from hmc.artifact.errors import LevelNotFoundError
from hmc.serving import DecodeOptions
from hmc.serving.client import Client
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings

MONITORING = REPOSITORY / "examples" / "monitoring"
BY_PROMETHEUS = {"instance", "job", "le"}
"""Labels that Prometheus adds, and that of histograms."""
ELSEWHERE = {"up", "hmc_process_up"}
"""Made by Prometheus, and by a service of several processes (see the tests of these)."""
LEVEL = "h12-int8"
SUFFIXES = ("_bucket", "_count", "_sum")


@pytest.fixture(scope="module")
def exported(lively_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Metric → its labels, as a server with a real model and one on (pretended) CUDA devices export them."""
    from tests.serving.fakes import write_bundle

    found: dict[str, set[str]] = {}

    def read(running: BackgroundServer) -> None:
        for name, labels in scrape(running):
            found.setdefault(name, set()).update(key for key, _ in labels)

    settings = ServerSettings(port=0, metrics_port=0, levels=(LEVEL,), default_level=LEVEL, threads=1, cache="none")
    with BackgroundServer(lively_bundle, settings) as running, Client(running.address) as client:
        options = DecodeOptions(beam_size=2, min_length=2, max_length=4)
        client.translate(SENTENCES[:2], None, options)
        list(client.translate_tokens(SENTENCES[0], None, options))
        with pytest.raises(LevelNotFoundError):
            client.translate(["a"], "unknown")
        with pytest.raises(HmcError):
            client.reload("/nowhere")
        read(running)
    settings = ServerSettings(port=0, metrics_port=0)
    bundle = write_bundle(tmp_path_factory.mktemp("devices") / "bundle")
    with BackgroundServer(bundle, settings, FactoryOnDevices()) as running:
        read(running)
    return found


def alerts() -> list[dict[str, Any]]:
    content = yaml.safe_load((MONITORING / "alerts.yaml").read_text(encoding="utf-8"))
    return [rule for group in content["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    dashboard = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    """Everything in PromQL, with Grafana's variables replaced as Grafana would."""
    shown = [target["expr"].replace("$__rate_interval", "1m") for panel in panels() for target in panel["targets"]]
    return [rule["expr"] for rule in alerts()] + shown


def parts(expression: Any) -> Iterator[Any]:
    """An expression and all that it is made of."""
    yield expression
    for name in ("lhs", "rhs", "expr", "args", "param", "vector_selector"):
        below = getattr(expression, name, None)
        for each in below if isinstance(below, list) else [below]:
            if each is not None:
                yield from parts(each)


def used(expression: str) -> Iterator[tuple[str, set[str]]]:
    """The metrics of an expression with the labels that it matches them by."""
    for part in parts(promql_parser.parse(expression)):
        if isinstance(part, promql_parser.VectorSelector):
            yield str(part.name), {matcher.name for matcher in part.matchers.matchers}


def grouped_by(expression: str) -> set[str]:
    """The labels in `by (…)`."""
    return {label.strip() for listed in re.findall(r"\bby \(([^)]*)\)", expression) for label in listed.split(",")}


def test_expressions_name_what_is_exported(exported: dict[str, set[str]]) -> None:
    assert len(expressions()) >= 40
    for expression in expressions():
        selected = dict(used(expression))
        assert selected, expression
        for name, labels in selected.items():
            if name in ELSEWHERE:
                continue
            assert name in exported, f"{expression}: no server exports {name}"
            assert labels <= exported[name] | BY_PROMETHEUS, expression
        every = set().union(*(exported.get(name, set()) for name in selected))
        assert grouped_by(expression) <= every | BY_PROMETHEUS, expression


def test_a_wrong_name_would_be_found(exported: dict[str, set[str]]) -> None:
    ((name, labels),) = used('sum by (level) (rate(hmc_request_total{status="OK"}[5m])) > 0')
    assert name not in exported
    assert not labels <= exported["hmc_requests_total"]


def test_every_alert_says_what_to_do() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len(set(names)) == len(names) >= 8
    for rule in alerts():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert set(rule["annotations"]) == {"summary", "action"}
        available = grouped_by(rule["expr"]) or {"instance", "model", "level", "device", "outcome"}
        shown = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert shown <= available, rule["alert"]


def test_alerts_by_promtool() -> None:
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool is not installed")
    for arguments in (["check", "rules", "alerts.yaml"], ["check", "config", "prometheus.yaml"]):
        ran = subprocess.run(
            [promtool, *arguments], cwd=MONITORING, capture_output=True, text=True, timeout=600, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_dashboard_is_whole() -> None:
    dashboard = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    known = {variable["name"] for variable in dashboard["templating"]["list"]}
    text = json.dumps(dashboard)
    assert set(re.findall(r"\$\{?([a-z]+)\b", text)) <= known
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
    for panel in panels():
        assert panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        for target in panel["targets"]:
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert shown <= (grouped_by(target["expr"]) or shown), panel["title"]


def test_the_page_lists_every_metric(exported: dict[str, set[str]]) -> None:
    page = (REPOSITORY / "docs" / "serving-reference.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(hmc_\w+)` \| ([^|]+) \| ([^|]+) \|", page, re.MULTILINE)
    listed = {name: set(re.findall(r"`(\w+)`", labels)) for name, _, labels in rows}
    assert all(unit.strip() for _, unit, _ in rows)
    found: dict[str, set[str]] = {}
    for name, labels in exported.items():
        if name.startswith("hmc_") and not name.endswith("_created"):
            family = next((name.removesuffix(s) for s in SUFFIXES if name.endswith(s)), name)
            found.setdefault(family, set()).update(labels - {"le"})
    assert listed == found
