"""`hmc serve --ray`: what it refuses before Ray starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Hmc
from tests.command import refused


def test_replicas_are_about_ray(hmc: Hmc, fake_bundle: Path) -> None:
    refused(hmc("serve", fake_bundle, "--replicas", "2"), "--replicas needs --ray")


def test_without_ray_the_command_that_installs_it_is_told(
    hmc: Hmc, fake_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    refused(hmc("serve", fake_bundle, "--ray"), "needs ray, which is not installed", "[ray]'")
