"""Which levels are measured, on which device, against which one."""

from pathlib import Path

import pytest

from hmc.artifact.bundle import Manifest, read_manifest
from hmc.artifact.errors import DeviceUnavailableError, InvalidRequestError, LevelNotFoundError
from hmc.benchmark.levels import choose_levels, reference_level
from hmc.serving import sessions


@pytest.fixture
def manifest(tiny_bundle: Path) -> Manifest:
    """As if h12 had been compiled in fp16."""
    changed = read_manifest(tiny_bundle)
    changed.level("h12").precision = "fp16"
    return changed


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "cuda_available", lambda: False)


def test_named_levels_once_and_in_the_order_given(manifest: Manifest) -> None:
    chosen = choose_levels(manifest, ["h5", "full", "h5"], "cpu")
    assert chosen.devices == {"h5": "cpu", "full": "cpu"}
    assert [level.name for level in chosen.levels] == ["h5", "full"]
    assert chosen.left_out == ()
    with pytest.raises(LevelNotFoundError, match="unknown level 'h6'"):
        choose_levels(manifest, ["h6"], "cpu")


@pytest.mark.usefixtures("no_cuda")
@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_all_are_those_that_run_here(manifest: Manifest, device: str) -> None:
    chosen = choose_levels(manifest, None, device)
    assert chosen.left_out == ("h12",)
    assert "h12" not in chosen.devices
    assert len(chosen.devices) == len(manifest.levels) - 1


def test_all_on_cuda(manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "cuda_available", lambda: True)
    assert choose_levels(manifest, None, "cuda:1").devices == {"h12": "cuda:1"}
    assert choose_levels(manifest, None, "auto").devices["h12"] == "cuda:0"


@pytest.mark.usefixtures("no_cuda")
def test_a_level_that_cannot_run_is_an_error_if_it_is_named(manifest: Manifest) -> None:
    with pytest.raises(DeviceUnavailableError, match="fp16, which is for cuda"):
        choose_levels(manifest, ["h12"], "cpu")
    with pytest.raises(DeviceUnavailableError, match="finds no CUDA device here"):
        choose_levels(manifest, None, "cuda")
    with pytest.raises(InvalidRequestError, match="device 'tpu': choose auto, cpu, cuda or cuda:N"):
        choose_levels(manifest, None, "tpu")


def test_no_level_for_the_device(tiny_bundle: Path) -> None:
    with pytest.raises(DeviceUnavailableError, match="no level of this bundle is for cuda"):
        choose_levels(read_manifest(tiny_bundle), None, "cuda")


def test_reference(manifest: Manifest) -> None:
    assert reference_level(manifest) == "full"
    manifest.level("full").precision = "fp16"
    manifest.levels.reverse()
    assert reference_level(manifest) == manifest.levels[0].name
