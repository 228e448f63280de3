"""`hmc serve --fronts 2`: fronts of one engine answer on one port, change together, and are started again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.processes import environment
from tests.serving.fakes import GUARD_S, eventually

from hmc.artifact.errors import LevelNotFoundError, OverloadedError, PortInUseError, UnavailableError
from hmc.serving import DecodeOptions
from hmc.serving.client import Client, Retry
from hmc.serving.server.access.tokens import digest
from hmc.serving.server.processes.supervisor import Supervisor
from hmc.serving.server.settings import ServerSettings

pytestmark = pytest.mark.slow

SHORT = DecodeOptions(max_length=8)
ON_DEMAND = "h5"
"""A level that is not loaded at the start."""
WAIT_S = GUARD_S


class Service:
    """A service of several processes."""

    def __init__(self, process: subprocess.Popen[str], said: dict[str, Any]) -> None:
        self.process, self.said = process, said

    def client(self, **more: Any) -> Client:
        """A client whose calls go over so many connections that every process gets some of them."""
        return Client(self.said["address"], connections=16, **more)

    def processes(self) -> list[psutil.Process]:
        """The engine's process and the fronts, in the order of their start. Process ids begin anew at the system's
        limit."""
        children = sorted(psutil.Process(self.process.pid).children(), key=psutil.Process.create_time)
        found = []
        for child in children:
            with suppress(psutil.NoSuchProcess):  # a ZombieProcess is one
                if "spawn_main" in " ".join(child.cmdline()):
                    found.append(child)
        return found

    def engine(self) -> psutil.Process:
        """The engine's process: it listens on the socket of the engine."""
        found = [each for each in self.processes() if _has_socket(each)]
        assert len(found) == 1, found
        return found[0]

    def fronts(self) -> list[psutil.Process]:
        """The fronts, in the order of their start, which is that of their numbers."""
        return [each for each in self.processes() if not _has_socket(each)]

    def samples(self, name: str, **headers: str) -> dict[str, float]:
        """A metric: labels → value."""
        url = f"http://127.0.0.1:{self.said['metrics_port']}/metrics"
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=WAIT_S) as response:
            lines = response.read().decode().splitlines()
        return {a: float(b) for a, _, b in (line.rpartition(" ") for line in lines) if a.startswith(f"{name}{{")}


def _has_socket(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return any(str(each.laddr).endswith("engine.sock") for each in process.net_connections("unix"))
    return False


@contextmanager
def serving(bundle: Path, *options: str | Path) -> Iterator[Service]:
    command = [
        sys.executable, "-m", "hmc.cli", "serve", str(bundle), "--fronts", "2", "--port", "0", "--metrics-port", "0",
        "--device", "cpu", "--levels", "full,h12", "--json", *map(str, options),
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        service = Service(process, json.loads(line))
        processes = service.processes()
        try:
            yield service
        finally:
            process.kill()  # without a word to its processes, which have to notice
    _, alive = psutil.wait_procs(processes, WAIT_S)
    assert not alive, "processes have outlived their supervisor"


@pytest.fixture(scope="module")
def service(tiny_bundle: Path) -> Iterator[Service]:
    with serving(tiny_bundle, "--http-port", "0") as running:
        yield running


@pytest.fixture
def own_service(tiny_bundle: Path) -> Iterator[Service]:
    """For a test that changes it or kills its processes; it loads what requests ask for."""
    with serving(tiny_bundle, "--http-port", "0", "--lazy") as running:
        yield running


def test_every_process_answers(service: Service) -> None:
    def both_have_served() -> bool:  # the system chooses the process of a connection, by chance
        with service.client() as client:
            for _ in range(32):
                assert client.translate(["A dog."], options=SHORT).level == "full"
        served = service.samples("hmc_texts_total")
        return all(any(f'process="{label}"' in key for key in served) for label in ("0", "1"))

    eventually(both_have_served)
    assert set(service.samples("hmc_process_up").values()) == {1.0}


def test_levels_are_in_memory_once(service: Service) -> None:
    """One front is told what the engine holds, so that the metrics of all fronts can be summed."""
    memory = service.samples("hmc_memory_bytes")
    shared = {key: value for key, value in memory.items() if 'part="shared"' in key and value}
    assert len({label for label in ("0", "1") if any(f'process="{label}"' in key for key in shared)}) == 1


def defaults(service: Service) -> set[str]:
    """The levels that answer calls which choose none."""
    with service.client() as client:
        return {client.translate(["A dog."], options=SHORT).level for _ in range(32)}


def all_are_new(service: Service, before: set[int]) -> bool:
    """Whether two processes answer, none of them one of those with these ids."""
    now = {worker.pid for worker in service.fronts()}
    try:
        return len(now - before) == len(now) == 2 and set(service.samples("hmc_process_up").values()) == {1.0}
    except OSError:  # the process that holds the port of the metrics is not there yet
        return False


def test_a_change_is_made_by_all_processes_and_by_those_that_start_later(own_service: Service) -> None:
    service = own_service
    with Client(service.said["address"]) as client:
        client.translate(["A dog."], ON_DEMAND, options=SHORT)  # loads the level in one process
        client.set_default_level(ON_DEMAND)
        assert defaults(service) == {ON_DEMAND}
        with pytest.raises(LevelNotFoundError):
            client.set_default_level("h99")
    before = service.fronts()
    assert len(before) == 2
    with service.client(retry=Retry(attempts=10)) as client:
        before[1].send_signal(signal.SIGKILL)
        for _ in range(100):
            assert client.translate(["A dog."], options=SHORT).level == ON_DEMAND
        eventually(lambda: all_are_new(service, {before[1].pid}))
    assert defaults(service) == {ON_DEMAND}
    with Client(service.said["address"]) as client:
        client.reload()
    assert defaults(service) == {"full"}


def test_addresses_stay_when_all_processes_are_started_again(own_service: Service) -> None:
    service = own_service
    before = {worker.pid for worker in service.fronts()}
    for worker in service.fronts():
        worker.kill()

    eventually(lambda: all_are_new(service, before))
    with service.client() as client:
        assert client.translate(["A dog."], options=SHORT).level == "full"


def test_the_engine_is_started_again(own_service: Service) -> None:
    """Fronts live on. What is under way fails with UNAVAILABLE, and levels are there again when the engine is."""
    service = own_service
    fronts = {front.pid for front in service.fronts()}
    before = service.engine().pid
    with service.client(retry=Retry(attempts=1)) as client:
        answer = client.translate(["A dog."], options=SHORT).translations
        service.engine().kill()

        def answers() -> bool:
            try:
                return client.translate(["A dog."], options=SHORT).translations[0].text == answer[0].text
            except UnavailableError:
                return False

        eventually(answers)
    assert service.engine().pid != before
    assert {front.pid for front in service.fronts()} == fronts


def test_sigterm_drains_every_front(tiny_bundle: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(
        f'[tokens.team]\nsha256 = "{digest("secret")}"\nscopes = ["translate", "metrics"]\n'
        "texts_per_second = 0.001\nburst = 6\n"
    )
    with serving(tiny_bundle, "--tokens", tokens, "--http-port", "0") as service:
        with service.client(token="secret", retry=Retry(attempts=1)) as client:
            for _ in range(6):  # whichever process answers
                client.translate(["A dog."], options=SHORT)
            for _ in range(8):
                with pytest.raises(OverloadedError):
                    client.translate(["A dog."], options=SHORT)
        url = f"{service.said['http_address']}/metrics"
        request = urllib.request.Request(url, headers={"Authorization": "Bearer secret"})
        with urllib.request.urlopen(request, timeout=WAIT_S) as response:
            text = response.read().decode()
        assert 'process="0"' in text
        assert 'process="1"' in text
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(WAIT_S) == 0
        assert service.process.stderr is not None
        log = service.process.stderr.read()
        assert "Traceback" not in log
        assert log.count("draining") == 2


def test_what_a_process_cannot_serve_is_said(tiny_bundle: Path) -> None:
    command = [sys.executable, "-m", "hmc.cli", "serve", str(tiny_bundle), "--fronts", "2", "--port", "0"]
    ran = subprocess.run(
        [*command, "--levels", "h99"], check=False, capture_output=True, text=True, env=environment(), timeout=WAIT_S
    )
    assert ran.returncode == 2, ran.stderr
    assert "h99" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_ports_of_a_service_are_taken(service: Service) -> None:
    port, http_port = (int(service.said[key].rpartition(":")[2]) for key in ("address", "http_address"))
    for settings in (ServerSettings(fronts=2, port=port), ServerSettings(fronts=2, port=0, http_port=http_port)):
        with pytest.raises(PortInUseError):
            Supervisor(["bundle"], settings)
