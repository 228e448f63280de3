"""A bulk translation that is killed again and again ends with the bytes of one that was not.

    python -m experiments.load.bulk corpus --out FOLDER --data DATA      # English of Multi30k and Tatoeba, repeated
    python -m experiments.load.bulk whole --out FOLDER --bundle BUNDLE   # the run that nothing kills
    python -m experiments.load.bulk killed --out FOLDER --bundle BUNDLE --engine ray   # SIGKILL twice, then to the end

On Ray, a process that translates is killed too, each time before the driver. `killed` compares every file of the two.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

SHARD = 2000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("corpus", "whole", "killed"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("HMC_DATA", "data")))
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--engine", default="local")
    parser.add_argument("--lines", type=int, default=200_000)
    asked = parser.parse_args()
    if asked.step == "corpus":
        asked.out.mkdir(parents=True, exist_ok=True)
        lines = itertools.islice(itertools.cycle(_sentences(asked.data)), asked.lines)
        (asked.out / "corpus.en").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    elif asked.step == "whole":
        began = time.monotonic()
        subprocess.run(_command(asked, asked.out / "whole"), check=True)
        print(f"whole, {asked.engine}: {time.monotonic() - began:.0f} s")
    else:
        _killed(asked)


def _sentences(data: Path) -> list[str]:
    with gzip.open(data / "multi30k/train.en.gz", "rt", encoding="utf-8") as file:
        captions = file.read().splitlines()
    with gzip.open(data / "tatoeba/deu-eng.short.tsv.gz", "rt", encoding="utf-8") as file:
        return captions + [line.split("\t")[0] for line in file.read().splitlines()]


def _command(asked: argparse.Namespace, out: Path) -> list[str]:
    return [
        sys.executable, "-m", "hmc.cli", "translate", "--bundle", str(asked.bundle), "--engine", asked.engine,
        "--source", str(asked.out / "corpus.en"), "-o", str(out), "--beam", "1", "--format", "jsonl", "--workers", "2",
        "--shard-lines", str(SHARD),
    ]  # fmt: skip


def _killed(asked: argparse.Namespace) -> None:
    out = asked.out / f"killed-{asked.engine}"
    shutil.rmtree(out, ignore_errors=True)
    shards = -(-asked.lines // SHARD)
    began = time.monotonic()
    for share in (1 / 3, 2 / 3):
        run = subprocess.Popen(_command(asked, out))
        _wait(out, int(shards * share), run)
        if asked.engine == "ray":
            print(f"killed processes that translate: {list(_kill_tasks(run.pid))}")
            _wait(out, int(shards * share) + 6, run)
        run.send_signal(signal.SIGKILL)
        run.wait()
        print(f"killed the run after {_written(out)} of {shards} files")
    subprocess.run(_command(asked, out), check=True)
    print(f"killed twice, {asked.engine}: {time.monotonic() - began:.0f} s")
    _compare(asked.out / "whole", out, asked.lines)


def _written(out: Path) -> int:
    return len(list((out / "translations").glob("[0-9]*")))


def _wait(out: Path, files: int, run: subprocess.Popen[bytes]) -> None:
    while _written(out) < files:
        if run.poll() is not None:
            raise SystemExit(f"the run ended with {run.returncode} before it was killed")
        time.sleep(0.2)


def _kill_tasks(driver: int) -> Iterator[int]:
    for process in psutil.Process(driver).children(recursive=True):
        if process.name().startswith("ray::translate") or "ray::translate_task" in " ".join(process.cmdline()):
            process.kill()
            yield process.pid
            return


def _compare(whole: Path, killed: Path, lines: int) -> None:
    """Exits with an error unless both folders hold the same files, and each line once and in order."""
    import json

    def files(folder: Path) -> dict[str, bytes]:
        return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}

    expected, found = files(whole), files(killed)
    other = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    numbers = [
        json.loads(line)["line"]
        for path in sorted((killed / "translations").glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    print(f"{len(found)} files, {len(other)} differ {other[:3]}; {len(numbers)} lines")
    print(f"every line once and in order: {numbers == list(range(1, lines + 1))}")
    if other or numbers != list(range(1, lines + 1)):
        raise SystemExit("the runs differ")


if __name__ == "__main__":
    main()
