"""`hmc serve --ray`: what it refuses before Ray starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Hmc


def test_replicas_are_about_ray(hmc: Hmc, fake_bundle: Path) -> None:
    ran = hmc("serve", fake_bundle, "--replicas", "2")
    assert ran.exit_code == 2
    assert "--replicas is about --ray: add it, or leave it out" in ran.stderr


def test_without_ray_the_command_that_installs_it_is_told(
    hmc: Hmc, fake_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    ran = hmc("serve", fake_bundle, "--ray")
    assert ran.exit_code == 2
    assert "needs ray, which is not installed" in ran.stderr
    assert "[ray]'" in ran.stderr
