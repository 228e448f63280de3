"""What a server says about the memory of its devices: to clients, to Prometheus and in tables; and its settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.serving.fakes import FIRST_DEVICE, SECOND_DEVICE, FactoryOnDevices, FakeFactory
from tests.support.metrics import metrics_of

from hmc.artifact import InvalidRequestError
from hmc.artifact.errors import FailedPreconditionError
from hmc.serving.client import Client, LevelBytes
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings


@pytest.fixture
def on_devices(bundle: Path) -> Iterator[BackgroundServer]:
    with BackgroundServer(bundle, ServerSettings(port=0, metrics_port=0), FactoryOnDevices()) as running:
        yield running


def test_clients_get_the_bytes_of_devices(on_devices: BackgroundServer) -> None:
    with Client(on_devices.address) as client:
        listed = client.levels()
    assert listed.devices == (FIRST_DEVICE, SECOND_DEVICE)
    assert listed.device == "cpu, cuda:0,cuda:1"
    shared = LevelBytes(3 * 2**20, 2 * 2**20)
    assert [level.device_memory for level in listed.levels] == [shared, shared, None]
    assert [level.device for level in listed.levels] == ["cuda:0,cuda:1", "cuda:0,cuda:1", "cpu"]


def test_prometheus_gets_the_bytes_of_devices(on_devices: BackgroundServer) -> None:
    lines = metrics_of(on_devices).splitlines()
    expected = {
        'hmc_device_memory_bytes{level="full",model="en-de",part="own"} 3.145728e+06',
        'hmc_device_memory_bytes{level="full",model="en-de",part="shared"} 2.097152e+06',
        'hmc_memory_bytes{level="h6",model="en-de",part="own"} 120.0',
        'hmc_device_reserved_bytes{device="cuda:0"} 5.24288e+06',
        'hmc_device_budget_bytes{device="cuda:0"} 8.388608e+07',
        'hmc_device_free_bytes{device="cuda:0"} 9.437184e+07',
        'hmc_device_reserved_bytes{device="cuda:1"} 7.0',
    }
    assert expected <= set(lines), expected - set(lines)
    assert not any('hmc_device_memory_bytes{level="h6",model="en-de"' in line for line in lines)
    assert not any('budget_bytes{device="cuda:1"' in line for line in lines)  # there is none


def test_a_level_that_does_not_fit_is_refused_and_the_others_serve(bundle: Path, factory: FakeFactory) -> None:
    factory.fail["h6"] = FailedPreconditionError("cuda:0 has too little memory for weights of level h6: needed 3.0 MiB")
    settings = ServerSettings(port=0, levels=("full",), lazy=True)
    with BackgroundServer(bundle, settings, factory) as running, Client(running.address) as client:
        with pytest.raises(FailedPreconditionError, match=r"weights of level h6: needed 3\.0 MiB"):
            client.load_level("h6")
        assert client.translate(["a"], "full")[0].text == "full:a"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gpu_memory": "much"}, "gpu_memory 'much': write bytes such as 8GiB"),
        ({"gpu_memory": "0%"}, "gpu_memory '0%'"),
        ({"gpu_attention": "fast"}, "gpu_attention fast: choose 'plain', 'efficient' or 'cudnn'"),
        ({"device": "tpu"}, "device 'tpu': choose auto, cpu, cuda"),
        ({"device": "cuda:x"}, "device 'cuda:x'"),
        ({"device": "cuda:"}, "device 'cuda:'"),
        ({"device": "cpu,cuda"}, "device 'cpu,cuda'"),
        ({"device": "cpu,cpu"}, "device 'cpu,cpu'"),
        ({"device": "cuda,cuda:0"}, "device 'cuda,cuda:0': name each device once"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        ServerSettings(**settings)  # type: ignore[arg-type]  # each of its own type


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:3", "cuda:0,cuda:1", "cuda:1, cuda:0"])
def test_devices_that_can_be_named(device: str) -> None:
    assert ServerSettings(device=device, gpu_memory="8GiB", gpu_attention="cudnn").device == device
