"""A server in a process of its own, so that its memory is its own, and raw bytes on its sockets."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from tests.processes import environment
from tests.serving.fakes import GUARD_S

STOP_S = GUARD_S
"""Seconds after which a server that does not stop is killed, and fails its test."""


@dataclass(frozen=True)
class Attacked:
    """The addresses of a server process."""

    process: subprocess.Popen[str]
    address: str
    url: str

    @property
    def bytes(self) -> int:
        """Memory that only this process uses, in bytes."""
        return int(psutil.Process(self.process.pid).memory_full_info().uss)

    def check_alive(self) -> None:
        """Fails the test if the process has ended."""
        assert self.process.poll() is None, f"the server ended with {self.process.returncode}"


@contextmanager
def attacked(bundle: Path) -> Iterator[Attacked]:
    """Runs `hmc serve` with both ports and two levels; fails the test if it does not stop with 0 after SIGTERM."""
    command = [
        sys.executable, "-m", "hmc.cli", "serve", str(bundle), "--json", "--port", "0", "--http-port", "0",
        "--levels", "full,h12-int8", "--default-level", "full", "--max-texts", "4",
        "--device", "cpu", "--threads", "1", "--cache", "none",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
    try:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        yield Attacked(process, said["address"], said["http_address"])
        process.terminate()
        assert process.wait(STOP_S) == 0
    finally:
        process.kill()
        process.communicate()


def send_raw(address: str, data: bytes) -> bytes:
    """Sends bytes to a socket as they are, and returns what comes until the server closes. address: `HOST:PORT`."""
    host, _, port = address.rpartition(":")
    got = b""
    with socket.create_connection((host, int(port)), timeout=600) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65536):
                got += part
        except ConnectionError:
            pass  # the server closed first
    return got
