"""Reads the metrics of a running server."""

from __future__ import annotations

import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from hmc.serving.server.background import BackgroundServer
from tests.serving.fakes import GUARD_S

Labels = frozenset[tuple[str, str]]


def metrics_of(running: BackgroundServer) -> str:
    """What the metrics port of the server shows."""
    assert running.server is not None
    url = f"http://127.0.0.1:{running.server.metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=GUARD_S) as response:
        return str(response.read().decode())


def scrape(running: BackgroundServer) -> dict[tuple[str, Labels], float]:
    """(name, labels) → value of everything that the metrics port of the server shows."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics_of(running))
        for sample in family.samples
    }


def value(found: dict[tuple[str, Labels], float], name: str, **labels: str) -> float:
    """The sum of all series of this name that have these labels; 0 if there is none."""
    wanted = set(labels.items())
    return sum(value for (each, has), value in found.items() if each == name and wanted <= has)
