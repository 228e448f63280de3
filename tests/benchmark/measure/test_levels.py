"""Which levels are measured, on which device, and compared with which level."""

from pathlib import Path

import pytest

from hmc.artifact import InvalidRequestError, Manifest, read_manifest
from hmc.artifact.errors import DeviceUnavailableError, LevelNotFoundError
from hmc.benchmark.measure.levels import choose_levels, reference_level
from hmc.engine.runtime import device as devices


@pytest.fixture
def manifest(tiny_bundle: Path) -> Manifest:
    """As if h12 had been compiled in fp16."""
    changed = read_manifest(tiny_bundle)
    changed.level("h12").precision = "fp16"
    return changed


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
    monkeypatch.setattr(devices, "cuda_problem", lambda _=0: None)
    assert choose_levels(manifest, None, "cuda:1").devices == {"h12": "cuda:1"}
    assert choose_levels(manifest, None, "auto").devices["h12"] == "cuda:0"


@pytest.mark.usefixtures("no_cuda")
def test_a_level_that_cannot_run_is_an_error_if_it_is_named(manifest: Manifest) -> None:
    with pytest.raises(DeviceUnavailableError, match="fp16, which is for cuda"):
        choose_levels(manifest, ["h12"], "cpu")
    with pytest.raises(DeviceUnavailableError, match="the NVIDIA driver is missing"):
        choose_levels(manifest, None, "cuda")
    with pytest.raises(InvalidRequestError, match="device 'tpu': choose auto, cpu, cuda, cuda:N or several"):
        choose_levels(manifest, None, "tpu")


def test_no_level_for_the_device(tiny_bundle: Path) -> None:
    with pytest.raises(DeviceUnavailableError, match="no level of this bundle is for cuda"):
        choose_levels(read_manifest(tiny_bundle), None, "cuda")


@pytest.mark.usefixtures("no_cuda")
def test_the_reference_runs_here(manifest: Manifest) -> None:
    assert reference_level(manifest) == "full"
    manifest.level("full").precision = "fp16"
    assert manifest.levels[0].name == "full"
    assert reference_level(manifest) == manifest.levels[1].name == "full-int8"
    exact, manifest.levels = manifest.levels[0], [manifest.levels[1], manifest.levels[0]]
    exact.name, exact.precision = "x", "fp32"
    assert reference_level(manifest) == "x", "the exact form of the first level"
    for level in manifest.levels:
        level.precision = "bf16"
    with pytest.raises(DeviceUnavailableError, match="need a CUDA device, and this machine has none"):
        reference_level(manifest)


def test_where_there_is_cuda_the_first_level_is_the_reference(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "cuda_problem", lambda _=0: None)
    manifest.level("full").precision = "fp16"
    assert reference_level(manifest) == manifest.levels[0].name == "full"
