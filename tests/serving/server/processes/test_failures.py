"""A process of several that cannot do what the others do: it is named, stays down, and comes back when it can."""

from __future__ import annotations

import asyncio
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.serving.fakes import FakeFactory, eventually, write_bundle
from tests.serving.server.processes.test_service import SHORT, WAIT_S, defaults, serving

from hmc.artifact.errors import FailedPreconditionError, InternalServiceError
from hmc.serving.client import Client
from hmc.serving.server.app import Server, open_models
from hmc.serving.server.processes.group import Group
from hmc.serving.server.settings import ServerSettings


def in_two(
    bundle: Path, folder: Path, factories: list[FakeFactory], check: Callable[[list[Client]], None], **more: Any
) -> None:
    """Runs `check` with a client of each of two servers of one group. more: settings of both."""
    settings = ServerSettings(port=0, fronts=2, levels=("full",), **more)

    async def run() -> None:
        models = [open_models({"": bundle}, settings, factory) for factory in factories]
        servers = [Server(each, settings, group=Group(folder, index, 2)) for index, each in enumerate(models)]
        try:
            for server in servers:
                await server.start()
            clients = [Client(server.address) for server in servers]
            await asyncio.to_thread(check, clients)
            for client in clients:
                client.close()
        finally:
            for server in servers:
                await server.stop()

    asyncio.run(run())


def loaded(client: Client) -> set[str]:
    return {level.name for level in client.levels().levels if level.loaded}


def test_a_change_that_one_process_cannot_make(bundle: Path, tmp_path: Path) -> None:
    """The others keep it, the error names the process, and repeating it makes it everywhere."""
    factories = [FakeFactory(), FakeFactory()]

    def check(clients: list[Client]) -> None:
        factories[1].fail["h6"] = InternalServiceError("its disk is gone")
        with pytest.raises(
            FailedPreconditionError,
            match=r"LoadLevel is done in 1 of 2 processes, which keep it, .*\(process 1: .*its disk is gone.*repeat it",
        ):
            clients[0].load_level("h6")
        assert [loaded(client) for client in clients] == [{"full", "h6"}, {"full"}]
        assert clients[0].translate(["a"], level="h6")[0].text == "h6:a"
        with pytest.raises(FailedPreconditionError):
            clients[1].translate(["a"], level="h6")
        with pytest.raises(FailedPreconditionError, match=r"SetDefaultLevel is done in 1 of 2 .*\(process 1: "):
            clients[0].set_default_level("h6")
        assert [client.translate(["a"])[0].text for client in clients] == ["h6:a", "full:a"]
        factories[1].fail.clear()
        clients[0].load_level("h6")
        clients[0].set_default_level("h6")
        assert [client.translate(["a"])[0].text for client in clients] == ["h6:a", "h6:a"]
        assert [loaded(client) for client in clients] == [{"full", "h6"}, {"full", "h6"}]
        clients[1].set_default_level("full")
        clients[1].unload_level("h6")
        assert [loaded(client) for client in clients] == [{"full"}, {"full"}]

    in_two(bundle, tmp_path, factories, check)


def test_what_the_first_process_cannot_change_stays_everywhere(bundle: Path, tmp_path: Path) -> None:
    factories = [FakeFactory(), FakeFactory()]

    def check(clients: list[Client]) -> None:
        factories[0].fail["h6"] = InternalServiceError("its disk is gone")
        with pytest.raises(InternalServiceError, match="its disk is gone"):
            clients[0].load_level("h6")
        assert factories[1].asked == ["full"]
        assert [loaded(client) for client in clients] == [{"full"}, {"full"}]
        assert Group(tmp_path, 0, 2).changes() == []

    in_two(bundle, tmp_path, factories, check)


def test_a_new_bundle_at_the_path_ends_the_choice_of_a_default_level(bundle: Path, tmp_path: Path) -> None:
    """In every process, and for those that are started again."""

    def check(clients: list[Client]) -> None:
        clients[0].load_level("h6")
        clients[0].set_default_level("h6")
        shutil.rmtree(bundle)
        write_bundle(bundle, version="fedcba9876543210")
        for client in clients:
            eventually(lambda client=client: client.levels().bundle_version == "fedcba9876543210")  # type: ignore[misc]
            assert client.translate(["a"])[0].text == "full:a"
        eventually(lambda: [name for name, _ in Group(tmp_path, 0, 2).changes()] == ["LoadLevel"])

    in_two(bundle, tmp_path, [FakeFactory(), FakeFactory()], check, watch=0.01)


@pytest.mark.slow
def test_a_process_that_cannot_serve_again_stays_down(tiny_bundle: Path, tmp_path: Path) -> None:
    """The others serve and take changes meanwhile. It serves, with those changes, when it can."""
    bundle, gone = tmp_path / "bundle", tmp_path / "gone"
    shutil.copytree(tiny_bundle, bundle)
    with serving(bundle) as service:
        said, log = threading.Event(), list[str]()

        def read() -> None:
            for line in service.process.stderr or ():
                log.append(line)
                if "front 1 cannot serve" in line:
                    said.set()

        reader = threading.Thread(target=read)
        reader.start()
        bundle.rename(gone)
        service.fronts()[1].send_signal(signal.SIGKILL)
        assert said.wait(WAIT_S), "".join(log)
        assert sorted(service.samples("hmc_process_up").items()) == [
            ('hmc_process_up{process="0"}', 1.0), ('hmc_process_up{process="1"}', 0.0)
        ]  # fmt: skip
        with service.client() as client:
            client.set_default_level("h12")
            assert {client.translate(["A dog."], options=SHORT).level for _ in range(16)} == {"h12"}
        gone.rename(bundle)
        eventually(lambda: set(service.samples("hmc_process_up").values()) == {1.0}, WAIT_S)
        assert defaults(service) == {"h12"}
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(WAIT_S) == 0
        reader.join()
    assert any("front 1 ended with status -9, and is started again" in line for line in log)
    assert any("front 1 cannot serve" in line and str(bundle) in line for line in log)
    assert "Traceback" not in "".join(log)
