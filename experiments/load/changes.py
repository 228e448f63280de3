"""Everything that operators change while a service runs, under load: does a request fail, does an answer mix bundles?

    python -m experiments.load.changes BUNDLE OTHER --source FILE --level NAME [--seconds 60] [--callers 8]
        [--beam 4] [--report FILE]

BUNDLE and OTHER have the level, with different weights. Two servers run with TLS and tokens. Callers translate one to
three lines of FILE at a time through the Python client, which knows both servers; every twenty calls a caller connects
anew, with the token that is valid by then. Meanwhile, in turn until the time is over:

- both servers reload the other bundle;
- both get another certificate and key, and SIGHUP;
- the tokens file gets a new token, then callers move to it, then the file loses the old one;
- one server gets SIGTERM and ends; it is started again when it has drained;
- the engine's process of the other one, and then one of its two fronts, is killed.

A call fails if the client raises. An answer is wrong if it is not exactly what its level translates with the bundle
version that the answer names; what is right is translated beforehand, in this process.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from experiments.load.served import HMC
from experiments.support.script import machine_report, run_script, write_report
from experiments.support.worker import WorkerError
from hmc.artifact.bundle.manifest import read_manifest
from hmc.artifact.errors import HmcError
from hmc.benchmark.measure.text import TestSet
from hmc.engine.requests.options import DecodeOptions
from hmc.serving.client import Client
from hmc.serving.server.processes.engine import SOCKET
from hmc.serving.translator import Translator

TEXTS = 50
CALLS_A_CONNECTION = 20
PAUSE_S = 2.0
"""Seconds between two changes."""


class Files:
    """The certificates and tokens of the servers, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._made, self._lines = folder, itertools.count(), dict[str, str]()
        self.cert, self.key, self.tokens = folder / "server.pem", folder / "server.key", folder / "tokens.toml"
        self.authorities = folder / "authorities.pem"
        self.token = self.new_token()
        self.new_certificate()

    def new_certificate(self) -> None:
        """Replaces the certificate of the servers by a new one, which clients trust beside those before it."""
        cert, key = self._folder / "new.pem", self._folder / "new.key"
        made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
        made += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
        subprocess.run(made, check=True, capture_output=True)
        with self.authorities.open("ab") as trusted:
            trusted.write(cert.read_bytes())
        key.replace(self.key)
        cert.replace(self.cert)

    def new_token(self) -> str:
        """Adds a token to the file, and returns it."""
        name = f"caller{next(self._made)}"
        command = [*HMC, "token", "new", name, "--scope", "translate", "--scope", "admin", "--json"]
        made = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        self._lines[made["token"]] = made["line"]
        self._write()
        return str(made["token"])

    def drop_token(self, token: str) -> None:
        """Takes a token out of the file."""
        del self._lines[token]
        self._write()

    def _write(self) -> None:
        new = self.tokens.with_suffix(".new")
        new.write_text("\n".join(self._lines.values()) + "\n", encoding="utf-8")
        new.replace(self.tokens)


class Server:
    """`hmc serve` on a port of its own, which it keeps when it is started again."""

    def __init__(self, bundle: Path, root: Path, level: str, files: Files, fronts: int) -> None:
        self._bundle, self._root, self._level, self._files, self.port = bundle, root, level, files, 0
        self._fronts = fronts
        self.start()

    def start(self) -> None:
        """Starts the process; returns when it serves. Raises WorkerError if it ends before."""
        files = self._files
        how = [
            "--tls-cert",
            str(files.cert),
            "--tls-key",
            str(files.key),
            "--tokens",
            str(files.tokens),
            "--device",
            "cpu",
        ]
        how += [
            "--fronts",
            str(self._fronts),
            "--port",
            str(self.port),
            "--levels",
            self._level,
            "--bundle-root",
            str(self._root),
            "--json",
        ]
        self._process = subprocess.Popen([*HMC, "serve", str(self._bundle), *how], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise WorkerError("hmc serve ended before it was ready; its message is above")
        self.address = str(json.loads(line)["address"])
        self.port = int(self.address.rpartition(":")[2])

    def reload(self, bundle: Path) -> None:
        """Serves another bundle, and starts with it from now on."""
        with Client(self.address, token=self._files.token, tls_ca=self._files.authorities) as client:
            client.reload(bundle.resolve(), timeout=120)
        self._bundle = bundle

    def read_files(self) -> None:
        """Makes the server look at its files now."""
        self._process.send_signal(signal.SIGHUP)

    def kill(self, *, engine: bool) -> None:
        """Kills the engine's process, or else a front that is a process of its own."""
        for child in psutil.Process(self._process.pid).children():
            with suppress(psutil.NoSuchProcess):
                listens = any(str(each.laddr).endswith(SOCKET) for each in child.net_connections("unix"))
                if "spawn_main" in " ".join(child.cmdline()) and listens == engine:
                    child.kill()
                    return
        raise WorkerError("there is no such process")

    def stop(self) -> None:
        """Sends SIGTERM and waits for the end."""
        self._process.terminate()
        self._process.wait(90)


class Callers:
    """Threads that translate until `stop`."""

    def __init__(self, servers: list[Server], files: Files, right: dict[str, dict[str, str]], beam: int) -> None:
        """right: bundle version → text → its translation."""
        self._addresses, self._files, self._right = [server.address for server in servers], files, right
        self._options, self._over = DecodeOptions(beam_size=beam), threading.Event()
        self._threads: list[threading.Thread] = []
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []

    def start(self, number: int) -> None:
        """Starts so many callers."""
        self._threads = [threading.Thread(target=self._run, args=(n,), daemon=True) for n in range(number)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends all callers, after their present call."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        chance, texts = random.Random(number), list(next(iter(self._right.values())))
        while not self._over.is_set():
            with Client(self._addresses, token=self._files.token, tls_ca=self._files.authorities) as client:
                for _ in range(CALLS_A_CONNECTION):
                    if self._over.is_set():
                        return
                    self._call(client, chance.sample(texts, chance.randint(1, 3)))

    def _call(self, client: Client, texts: list[str]) -> None:
        try:
            answer = client.translate(texts, options=self._options, timeout=60)
        except HmcError as error:
            self.counts["failed"] += 1
            self.errors.append(f"{type(error).__name__}: {error}")
            return
        known = self._right.get(answer.bundle_version, {})
        right = all(known.get(text) == found.text for text, found in zip(texts, answer, strict=True))
        self.counts["right" if right else "wrong"] += 1
        self.counts[f"version {answer.bundle_version}"] += 1


def changes(servers: list[Server], files: Files, bundles: list[Path]) -> list[tuple[str, Callable[[], None]]]:
    """The changes, each with its name, in their order."""
    turn = itertools.cycle([bundles[1], bundles[0]])

    def reload() -> None:
        bundle = next(turn)
        for server in servers:
            server.reload(bundle)

    def certificate() -> None:
        files.new_certificate()
        for server in servers:
            server.read_files()

    def token() -> None:
        old, new = files.token, files.new_token()
        for server in servers:
            server.read_files()
        time.sleep(PAUSE_S)
        files.token = new
        time.sleep(2 * PAUSE_S)  # connections with the old token end meanwhile
        files.drop_token(old)

    def restart() -> None:
        servers[1].stop()
        servers[1].start()

    def kill_engine() -> None:
        servers[0].kill(engine=True)
        time.sleep(2 * PAUSE_S)  # it loads its levels again

    def kill_front() -> None:
        servers[0].kill(engine=False)
        time.sleep(2 * PAUSE_S)

    return [
        ("reload", reload),
        ("certificate", certificate),
        ("token", token),
        ("SIGTERM", restart),
        ("engine killed", kill_engine),
        ("front killed", kill_front),
    ]


def right_answers(bundles: list[Path], level: str, texts: list[str], beam: int) -> dict[str, dict[str, str]]:
    """Bundle version → text → its translation. Raises WorkerError if the bundles translate all texts alike."""
    found: dict[str, dict[str, str]] = {}
    for bundle in bundles:
        with Translator(bundle, level, device="cpu") as translator:
            answers = translator.translate(texts, DecodeOptions(beam_size=beam))
        found[read_manifest(bundle).version] = {t: a.text for t, a in zip(texts, answers, strict=True)}
    if len(found) < len(bundles) or len({json.dumps(each) for each in found.values()}) < len(bundles):
        raise WorkerError("the bundles translate alike: give bundles of different weights")
    return found


def main() -> None:
    """Parses arguments, runs, prints what came of it. Returns 1 if a call failed or an answer was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("other", type=Path)
    parser.add_argument("--source", type=Path, required=True, help="file with one text on each line")
    parser.add_argument("--level", required=True)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    print(__doc__)
    report: dict[str, Any] = {"machine": machine_report()}
    done: Counter[str] = Counter()
    root = Path(tempfile.mkdtemp(prefix="hmc-changes-"))
    try:
        bundles = [Path(shutil.copytree(each, root / str(n))) for n, each in enumerate((options.bundle, options.other))]
        texts = list(dict.fromkeys(TestSet.read(options.source).texts))[:TEXTS]
        right = right_answers(bundles, options.level, texts, options.beam)
        files = Files(root)
        servers = [Server(bundles[0], root, options.level, files, fronts) for fronts in (2, 1)]
        callers = Callers(servers, files, right, options.beam)
        callers.start(options.callers)
        end = time.monotonic() + options.seconds
        for name, change in itertools.cycle(changes(servers, files, bundles)):
            time.sleep(PAUSE_S)
            change()
            done[name] += 1
            if time.monotonic() > end:
                break
        callers.stop()
        for server in servers:
            server.stop()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(f"changes: {dict(done)}\ncalls: {dict(callers.counts)}", *sorted(set(callers.errors))[:10], sep="\n")
    write_report(
        options.report, {**report, "changes": dict(done), "calls": dict(callers.counts), "errors": callers.errors}
    )
    if callers.counts["failed"] or callers.counts["wrong"] or not callers.counts["right"]:
        raise WorkerError("a call failed, or an answer was wrong")


if __name__ == "__main__":
    run_script(main)
