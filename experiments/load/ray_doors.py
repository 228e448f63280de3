"""Ray Serve beside plain servers: throughput, a replica that is killed, and scaling by load.

    python -m experiments.load.ray_doors throughput BUNDLE --source test.en   # two plain servers, then two replicas
    python -m experiments.load.ray_doors kill BUNDLE --source test.en         # of two, under calls of Python and Node
    python -m experiments.load.ray_doors scale BUNDLE --source test.en        # 1 to 3 and back, with a file for Ray

Load: single-sentence calls, --callers at a time, each sent when the one before is answered. `kill` sends SIGKILL to the
process of a replica, and counts calls that fail after the clients' own retries.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np
import psutil

from experiments.load.served import HMC, served
from hmc.artifact.errors import HmcError
from hmc.serving.client import AsyncClient, Client

NODE = Path(__file__).parents[2] / "examples/clients/node/client.mjs"
FILE = """
proxy_location: HeadOnly
http_options: {{host: 127.0.0.1, port: {http}}}
grpc_options:
  port: {port}
  grpc_servicer_functions:
  - hmc.serving.ray.registering.add_translation_service
  - hmc.serving.ray.registering.add_health_service
applications:
- name: hmc
  import_path: hmc.serving.ray.application:build
  args:
    {{bundles: ["{bundle}"], threads: 1, cpus: 0.5, replicas: "1:3", replica_texts: 16, upscale_s: 3, downscale_s: 15}}
"""


@dataclass
class Load:
    """What came of the calls."""

    milliseconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        low, high = np.percentile(self.milliseconds, (50, 95))
        return f"{len(self.milliseconds)} calls, {len(self.failures)} failed, p50 {low:.0f} ms, p95 {high:.0f} ms"


async def load(addresses: list[str], texts: list[str], callers: int, seconds: float) -> Load:
    """Calls for some seconds."""
    found, numbers, end = Load(), count(), time.monotonic() + seconds

    async def caller(client: AsyncClient) -> None:
        while time.monotonic() < end:
            began = time.monotonic()
            try:
                await client.translate([texts[next(numbers) % len(texts)]])
                found.milliseconds.append(1000 * (time.monotonic() - began))
            except HmcError as error:
                found.failures.append(str(error))

    async with AsyncClient(addresses if len(addresses) > 1 else addresses[0]) as client:
        await asyncio.gather(*(caller(client) for _ in range(callers)))
    return found


@contextmanager
def through_ray(bundle: Path, replicas: str) -> Iterator[str]:
    """`hmc serve --ray`; yields its address."""
    port = _free_port()
    command = [*HMC, "serve", str(bundle), "--ray", "--replicas", replicas, "--port", str(port), "--threads", "1"]
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True, env=_environment()) as process:
        try:
            assert process.stdout is not None
            yield next(json.loads(line)["address"] for line in process.stdout if line.startswith("{"))
        finally:
            process.terminate()


def throughput(asked: argparse.Namespace, texts: list[str]) -> None:
    with ExitStack() as stack:
        plain = [stack.enter_context(served(asked.bundle, ("--threads", "1"))).address for _ in range(2)]
        asyncio.run(load(plain, texts, asked.callers, 3))
        _say("two plain servers", asyncio.run(load(plain, texts, asked.callers, asked.seconds)), asked.seconds)
    with through_ray(asked.bundle, "2") as address:
        asyncio.run(load([address], texts, asked.callers, 3))
        _say("two replicas of Ray", asyncio.run(load([address], texts, asked.callers, asked.seconds)), asked.seconds)


def kill(asked: argparse.Namespace, texts: list[str]) -> None:
    with through_ray(asked.bundle, "2") as address:
        node = _Node(address, texts)

        async def both() -> Load:
            async def killer() -> None:
                await asyncio.sleep(asked.seconds / 3)
                victim = _replicas()[0]
                print(f"{len(_replicas())} replicas; SIGKILL to {victim.pid}")
                victim.kill()

            calls, node_calls, _ = await asyncio.gather(
                load([address], texts, asked.callers, asked.seconds), node.run(asked.seconds), killer()
            )
            print(f"Node: {node_calls}, {len(node.failures)} failed {node.failures[:2]}")
            return calls

        _say("Python", asyncio.run(both()), asked.seconds)
        print(f"{len(_replicas())} replicas at the end")


class _Node:
    """The Node client, run again and again: a call and a stream each time."""

    def __init__(self, address: str, texts: list[str]) -> None:
        self._command, self.failures = ["node", str(NODE), address, *texts[:4]], list[str]()

    async def run(self, seconds: float) -> str:
        ends, runs = time.monotonic() + seconds, 0
        while time.monotonic() < ends:
            process = await asyncio.create_subprocess_exec(
                *self._command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
            )
            _, said = await process.communicate()
            runs += 1
            if process.returncode:
                self.failures.append(said.decode().strip())
        return f"{runs} runs"


def scale(asked: argparse.Namespace, texts: list[str]) -> None:
    port = _free_port()
    file = Path(f"/tmp/hmc-ray-{port}.yaml")
    file.write_text(FILE.format(http=_free_port(), port=port, bundle=asked.bundle.resolve()))
    command = [sys.executable, "-c", "from ray.serve.scripts import cli; cli()", "run", str(file)]
    with subprocess.Popen(command, env=_environment()) as process:
        try:
            address = f"127.0.0.1:{port}"
            with Client(address) as client:
                client.wait_ready(120)

            async def watched() -> None:
                began, seen = time.monotonic(), 0
                working = asyncio.create_task(load([address], texts, 96, asked.seconds))
                while time.monotonic() - began < asked.seconds + 60 and not (working.done() and seen == 1):
                    if len(_replicas()) != seen:
                        seen = len(_replicas())
                        print(f"{time.monotonic() - began:5.1f} s: {seen} replicas", flush=True)
                    await asyncio.sleep(0.5)
                _say("load", await working, asked.seconds)

            asyncio.run(watched())
        finally:
            process.terminate()
            file.unlink()


def _say(name: str, found: Load, seconds: float) -> None:
    print(f"{name}: {found}, {len(found.milliseconds) / seconds:.0f} calls/s {found.failures[:2]}", flush=True)


def _replicas() -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["name"]) if p.info["name"].startswith("ray::ServeRepli")]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _environment() -> dict[str, str]:
    return {**os.environ, "RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_SERVE_HTTP_PORT": str(_free_port())}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("throughput", "kill", "scale"))
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--callers", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=20.0)
    asked = parser.parse_args()
    texts = [line for line in asked.source.read_text(encoding="utf-8").splitlines() if line.strip()]
    {"throughput": throughput, "kill": kill, "scale": scale}[asked.step](asked, texts)


if __name__ == "__main__":
    main()
