"""Many connections and few descriptors: the server keeps some for its work, and no listener fills the log."""

from __future__ import annotations

import errno
import json
import resource
import select
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.processes import environment
from tests.serving.fakes import GUARD_S

from hmc.serving.client import Client

LIMIT = 400
"""Descriptors; a server that does nothing has some 60."""


@contextmanager
def served(bundle: Path, log: Path, limits: str, *more: str) -> Iterator[dict[str, str]]:
    """Runs `hmc serve` with gRPC, HTTP and metrics under `ulimit`; yields what it says when it serves."""
    words = [
        sys.executable, "-m", "hmc.cli", "serve", str(bundle), "--json", "--port", "0", "--http-port", "0",
        "--metrics-port", "0", "--levels", "full", "--device", "cpu", "--threads", "1", *more,
    ]  # fmt: skip
    command = ["sh", "-c", f'ulimit {limits} && exec "$@"', "sh", *words]
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True, env=environment())
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
            assert process.poll() is None
            process.terminate()
            assert process.wait(GUARD_S) == 0
        finally:
            process.kill()
            process.communicate()


def silent(stack: ExitStack, address: str, number: int) -> None:
    """Opens connections that say nothing until the stack ends, at once: a port whose queue is full makes each wait.

    address: `HOST:PORT`.
    """
    host, _, port = address.removeprefix("http://").rpartition(":")
    waiting = select.poll()
    for _ in range(number):
        connection = stack.enter_context(socket.socket())
        connection.setblocking(False)
        assert connection.connect_ex((host, int(port))) in {0, errno.EINPROGRESS}
        waiting.register(connection, select.POLLOUT)
    opened = set[int]()
    while len(opened) < number:
        events = waiting.poll(GUARD_S * 1000)
        assert events
        for descriptor, _ in events:
            waiting.unregister(descriptor)
            opened.add(descriptor)


@pytest.mark.parametrize("attacked", ["http_address", "address", "metrics_port", "admin_address"])
def test_silent_connections_take_no_descriptor_that_others_need(
    tiny_bundle: Path, tmp_path: Path, attacked: str
) -> None:
    log = tmp_path / "log"
    admin = "127.0.0.1:0"
    with ExitStack() as stack:
        said = stack.enter_context(served(tiny_bundle, log, f"-n {LIMIT}", "--admin-address", admin))
        address = f"127.0.0.1:{said['metrics_port']}" if attacked == "metrics_port" else said[attacked]
        silent(stack, address, LIMIT)
        if attacked != "address":
            with Client(said["address"]) as client:
                assert client.translate(["A dog."], timeout=GUARD_S)
        if attacked != "metrics_port":
            with urllib.request.urlopen(f"http://127.0.0.1:{said['metrics_port']}/metrics", timeout=GUARD_S) as answer:
                assert answer.status == 200
        if attacked != "http_address":
            with urllib.request.urlopen(f"{said['http_address']}/health", timeout=GUARD_S) as answer:
                assert answer.status == 200
    text = log.read_text()
    assert "Traceback" not in text
    assert "connections at a time, not 1024: this process may open 400 files; raise it" in text
    assert len(text.splitlines()) < 40


def test_the_soft_limit_is_raised(tiny_bundle: Path, tmp_path: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("the hard limit on open files is low here")
    log = tmp_path / "log"
    with ExitStack() as stack:
        said = stack.enter_context(served(tiny_bundle, log, "-Sn 256", "--max-connections", "600"))
        silent(stack, said["http_address"], 500)
        with urllib.request.urlopen(f"{said['http_address']}/health", timeout=GUARD_S) as answer:
            assert answer.status == 200
        with Client(said["address"]) as client:
            assert client.translate(["A dog."], timeout=GUARD_S)
    assert "Traceback" not in log.read_text()
    assert "open 256 files" not in log.read_text()


def test_too_few_for_any_connection(tiny_bundle: Path) -> None:
    command = [sys.executable, "-m", "hmc.cli", "serve", str(tiny_bundle), "--port", "0"]
    ran = subprocess.run(
        ["sh", "-c", 'ulimit -n 100 && exec "$@"', "sh", *command],
        capture_output=True, text=True, env=environment(), timeout=GUARD_S, check=False,
    )  # fmt: skip
    assert ran.returncode == 2
    assert "this process may open 100 files, and needs" in ran.stderr


EXHAUSTED = """
import asyncio, logging, os, resource, sys, threading
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from hmc.serving.http.listener import Listener
from hmc.serving.server.observing import metrics_port

logging.basicConfig(format="%(levelname)s %(message)s")

async def hello(request):
    return PlainTextResponse("hello")

async def http():
    listener = Listener(Starlette(routes=[Route("/", hello)]), "127.0.0.1", 0, None, max_connections=1000)
    await listener.start()
    exhaust(listener.port)
    await asyncio.Event().wait()

def metrics():
    metrics_port._Handler.timeout = 1  # of 20 s
    exhaust(metrics_port.serve_metrics(CollectorRegistry(), "127.0.0.1", 0)[1])
    threading.Event().wait()

def exhaust(port):
    limit = len(os.listdir("/proc/self/fd")) + 4
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    print(port, flush=True)

metrics() if sys.argv[1] == "metrics" else asyncio.run(http())
"""


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the system has no /proc")
@pytest.mark.parametrize("port", ["HTTP", "metrics"])
def test_no_descriptor_left_is_a_line_a_second(tmp_path: Path, port: str) -> None:
    """Whatever takes them: a connection then waits, and is answered when there is room."""
    with (tmp_path / "log").open("w") as log:
        command = [sys.executable, "-c", EXHAUSTED, port]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment())
        try:
            assert process.stdout is not None
            address = f"127.0.0.1:{process.stdout.readline().strip()}"
            began = time.monotonic()
            with ExitStack() as stack:
                silent(stack, address, 20)
                while (tmp_path / "log").read_text().count("takes no connection now") < 2:
                    assert process.poll() is None
                    time.sleep(0.05)
            with urllib.request.urlopen(f"http://{address}/", timeout=GUARD_S) as answer:
                assert answer.status == 200
            seconds = time.monotonic() - began
        finally:
            process.kill()
            process.communicate()
    lines = (tmp_path / "log").read_text().splitlines()
    assert set(lines) == {f"WARNING the {port} port takes no connection now: Too many open files"}
    assert len(lines) <= seconds + 2
