"""Ray Serve over fake translators, as a process: `python -m tests.serving.ray.door BUNDLE PORT REPLICAS`."""

from __future__ import annotations

import sys

from tests.serving.fakes import FakeFactory

from hmc.serving.levels.slots import TranslatorFactory
from hmc.serving.ray import running
from hmc.serving.ray.replica import Replica
from hmc.serving.server.settings import ServerSettings


class FakeReplica(Replica):
    """A replica whose levels answer `LEVEL:TEXT`."""

    def factory(self) -> TranslatorFactory:
        return FakeFactory()


def main() -> None:
    bundle, port, replicas = sys.argv[1:]
    settings = ServerSettings(port=int(port), max_texts=10, stream_window=4, drain_seconds=5.0)
    running.run((bundle,), settings, replicas, lambda address: print(f"ready {address}", flush=True), FakeReplica)


if __name__ == "__main__":
    sys.modules["tests.serving.ray.door"] = sys.modules["__main__"]  # so that replicas import it by its name
    FakeReplica.__module__ = "tests.serving.ray.door"
    main()
