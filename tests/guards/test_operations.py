"""The commands of docs/operations.md that set up a service, run in their order: they do what the page says."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from tests.guards.pages import DOCS, Shell, matches, steps
from tests.ports import held_port
from tests.processes import REPOSITORY

PAGE = DOCS / "operations.md"
TOOLS = ("bash", "openssl", "curl", "grep", "tail")


@pytest.mark.slow
@pytest.mark.skipif(not all(map(shutil.which, TOOLS)), reason=f"needs {', '.join(TOOLS)}")
def test_the_page_sets_up_a_service(tmp_path: Path) -> None:
    section = [step for step in steps(PAGE) if step.section == "From nothing to a monitored service"]
    assert len(section) >= 25
    with held_port() as port, held_port() as metrics:
        shell = Shell(tmp_path, {"50051": str(port), "9090": str(metrics)})
        try:
            for step in section:
                if step.text.startswith("grep -o"):  # the server has been told to stop
                    shell.run("timeout 60 tail --pid=$(cat hmc.pid) -f /dev/null")
                printed = shell.run(step.text)
                assert matches([*map(shell.here, step.shown)], printed), f"{step.text}\nprinted:\n{printed}"
        finally:
            shell.close()
    lines = [json.loads(line) for line in (tmp_path / "service" / "hmc.log").read_text().splitlines()]
    ended = [(line["rpc"].rpartition("/")[2], line["status"], line["caller"]) for line in lines if "status" in line]
    assert ("Translate", "OK", "website") in ended
    assert ("Translate", "UNAUTHENTICATED", "") in ended
    assert any("replaces" in line["message"] for line in lines)
    assert not any("hmc_" in line["message"] for line in lines if "settings" not in line["message"])  # no token


def test_the_page_lists_every_alert() -> None:
    content = yaml.safe_load((REPOSITORY / "examples/monitoring/alerts.yaml").read_text(encoding="utf-8"))
    rules = [rule for group in content["groups"] for rule in group["rules"]]
    page = PAGE.read_text(encoding="utf-8")
    for rule in rules:
        row = f"| `{rule['alert']}` | {rule['labels']['severity']} | {rule['annotations']['action']} |"
        assert row in page
    assert len(re.findall(r"^\| `Hmc\w+` \|", page, re.MULTILINE)) == len(rules)
