"""The advice to install an extra names the place from which HMC was installed."""

from __future__ import annotations

import json
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest

from hmc.artifact.distribution import VERSION, how_to_install

FOLDER = {"url": "file:///home/me/hmc", "dir_info": {"editable": True}}
WHEEL = {"url": "file:///tmp/headmask-1-py3-none-any.whl", "archive_info": {}}


@pytest.mark.parametrize(
    ("origin", "advice"),
    [
        (None, "pip install 'headmask[train]'"),
        (FOLDER, "in the folder of HMC's source, pip install '.[train]'"),
        (WHEEL, "pip install 'headmask[train] @ file:///tmp/headmask-1-py3-none-any.whl'"),
    ],
)
def test_the_advice_fits_the_origin(
    monkeypatch: pytest.MonkeyPatch, origin: dict[str, Any] | None, advice: str
) -> None:
    written = None if origin is None else json.dumps(origin)
    installed = SimpleNamespace(read_text={"direct_url.json": written}.get)
    monkeypatch.setattr(metadata, "distribution", {"headmask": installed}.__getitem__)
    assert how_to_install("train") == advice


def test_the_advice_for_sources_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    assert how_to_install("plot") == "in the folder of HMC's source, pip install '.[plot]'"


def test_the_version_is_a_release_number() -> None:
    assert [part.isdecimal() for part in VERSION.split(".")] == [True] * 3
