"""The longest that a server keeps /health/live waiting while it is attacked with texts and bodies that cost much.

    python -m experiments.load.stalls BUNDLE [--seconds 8] [--generated 20000] [--callers 8] [--report stalls.json]

The server is a process, the callers are a second one, and the one that asks for /health/live every 4 ms is a third:
within a server, Python's lock would hide a stall. Each attack lasts --seconds: fixed texts that expressions of the
division of texts had trouble with, bodies of a key that is repeated, phrases to keep, and then --generated random
texts of up to 256 kB, made of the parts that those expressions look for. Callers leave after 0.2 seconds, as an
attacker would.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import random
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import repeat
from multiprocessing.connection import Connection
from pathlib import Path

from experiments.load.served import served
from experiments.support.script import machine_report, run_script, write_report

POLL_S, PATIENCE_S = 0.004, 0.2
LONGEST = 256_000
PARTS = [
    "a", "word ", "&", "x@", ".", "....", "\n", "\n\n", "\r", "\u2028", "1. ", "- ", "\t", "  ", '"', "'", "(", "www.",
    "http://", "。", "É", ": ", "?!", "é ",
]  # fmt: skip
"""What expressions of the division of texts look for."""
FIXED = {
    "x@....": "x@" + "." * LONGEST, "quotes": "\"'" * (LONGEST // 2), "blanks": " " * LONGEST + "a",
    "lines": "a\n" * (LONGEST // 2), "list": "1. " * (LONGEST // 3), "words": "word " * (LONGEST // 5),
    "word &": "word & " * (LONGEST // 7), "sentences": "a. " * (LONGEST // 3),
}  # fmt: skip


@dataclass(frozen=True)
class Waiting:
    """How long /health/live took under one attack, in milliseconds."""

    attack: str
    asked: int
    p50_ms: float
    p99_ms: float
    worst_ms: float
    sent: int
    """Requests of the attack."""


def texts_of(attack: str, generated: int) -> Iterator[bytes]:
    """The bodies of an attack, without end or as many as are asked for."""
    if attack == "repeated key":
        yield from repeat(b"text=a&" * 9000)
    elif attack == "phrases":
        keep = [f"{'ab ' * 300}{n}" for n in range(512)]
        yield from repeat(json.dumps({"texts": ["ab " * 2000], "keep": keep}).encode())
    elif attack in FIXED:
        yield from repeat(json.dumps({"texts": [FIXED[attack]]}).encode())
    else:
        draw = random.Random(1)
        for _ in range(generated):
            few = draw.sample(PARTS, draw.randint(1, 3))
            text = "".join(draw.choices(few, k=draw.randint(1, LONGEST // max(map(len, few)))))
            yield json.dumps({"texts": [text[:LONGEST]]}).encode()


def attack_with(address: str, attack: str, generated: int, callers: int, seconds: float, said: Connection) -> None:
    """Sends the bodies of an attack from several threads; says how many."""
    bodies, lock, sent = texts_of(attack, generated), threading.Lock(), [0]
    until = time.monotonic() + seconds
    path, kind = "/v1/translate", "application/json"
    if attack == "repeated key":
        path, kind = "/translate", "application/x-www-form-urlencoded"

    def call() -> None:
        while attack == "generated" or time.monotonic() < until:
            with lock:
                body = next(bodies, None)
                if body is None:
                    return
                sent[0] += 1
            connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
            with suppress(OSError, http.client.HTTPException):
                connection.request("POST", path, body, {"Content-Type": kind})
                connection.getresponse().read()
            connection.close()

    threads = [threading.Thread(target=call) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    said.send(sent[0])


def wait_for_health(address: str, stop: Connection) -> None:
    """Asks for /health/live until it is told to stop; then says how long each answer took, in seconds."""
    took = list[float]()
    while not stop.poll():
        began = time.perf_counter()
        connection = http.client.HTTPConnection(address, timeout=60)
        connection.request("GET", "/health/live")
        connection.getresponse().read()
        connection.close()
        took.append(time.perf_counter() - began)
        time.sleep(POLL_S)
    stop.recv()
    stop.send(took)


def measure(address: str, attack: str, generated: int, callers: int, seconds: float) -> Waiting:
    """Attacks the server and watches it meanwhile."""
    spawn = multiprocessing.get_context("spawn")
    (watch, watched), (heard, said) = spawn.Pipe(), spawn.Pipe()
    attacker = spawn.Process(target=attack_with, args=(address, attack, generated, callers, seconds, said))
    watcher = spawn.Process(target=wait_for_health, args=(address, watched))
    watcher.start()
    attacker.start()
    sent = heard.recv()
    watch.send("stop")
    took = sorted(1000 * each for each in watch.recv())
    watcher.join()
    attacker.join()
    return Waiting(attack, len(took), took[len(took) // 2], took[int(0.99 * len(took))], took[-1], sent)


def main() -> None:
    """Runs every attack against one server and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--generated", type=int, default=20_000)
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--report", type=Path)
    given = parser.parse_args()
    machine, found = machine_report(), list[Waiting]()
    with served(given.bundle, ["--http-port", "0", "--threads", "1"]) as server:
        address = str(server.announced["http_address"]).removeprefix("http://").rstrip("/")
        for attack in (*FIXED, "repeated key", "phrases", *(["generated"] if given.generated else [])):
            each = measure(address, attack, given.generated, given.callers, given.seconds)
            found.append(each)
            print(
                f"{attack:>14}: {each.sent} requests; /health/live {each.asked} times, p50 {each.p50_ms:.1f} ms, "
                f"p99 {each.p99_ms:.1f} ms, worst {each.worst_ms:.1f} ms",
                flush=True,
            )
            time.sleep(2)  # what the attack has left ends
    write_report(given.report, {"machine": machine, "attacks": [asdict(each) for each in found]})


if __name__ == "__main__":
    run_script(main)
