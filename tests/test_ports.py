"""A held port is free for the program that is told it, and for nobody else."""

from __future__ import annotations

import asyncio

from hmc.serving.server.access.listening import check_port
from hmc.serving.server.processes.supervisor import Supervisor
from hmc.serving.server.settings import ServerSettings
from tests.ports import held_port


def test_a_program_can_listen_on_a_held_port() -> None:
    async def listen(port: int) -> None:
        (await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", port)).close()

    with held_port() as port:
        check_port("127.0.0.1", port, "--port")
        asyncio.run(listen(port))
        with Supervisor([], ServerSettings(fronts=2, port=port)):
            pass
