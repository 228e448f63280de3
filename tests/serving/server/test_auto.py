"""`--auto-target-ms` with real levels: `auto` steps down under load."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hmc.serving import DecodeOptions, Selector
from hmc.serving.client import Client
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings

pytestmark = pytest.mark.slow

AUTO = Selector(auto=True)
SHORT, LONG = DecodeOptions(beam_size=1, max_length=4), DecodeOptions(beam_size=4, max_length=40)
ANY_NUMBER = 10**6
CALLERS = 12


@pytest.mark.parametrize("target_ms", [50.0, None])
def test_auto_steps_down_under_load(lively_bundle: Path, target_ms: float | None) -> None:
    """Without a target the same load leaves it where it is."""
    settings = ServerSettings(
        port=0, device="cpu", threads=1, queue_size=10_000, levels=("full", "h12", "h5"),
        auto_pending=ANY_NUMBER, auto_target_ms=target_ms,
    )  # fmt: skip
    found, left = list[str](), threading.Event()
    with BackgroundServer(lively_bundle, settings) as running, Client(running.address) as client:
        assert client.translate(["A dog."], AUTO, options=SHORT).level == "full"

        def load() -> None:
            """Calls that take long together, until one of them gets another level."""
            for _ in range(20 if target_ms else 2):
                if not left.is_set():
                    found.append(client.translate(["A dog runs on the beach."] * 16, AUTO, options=LONG).level)
                    if found[-1] != "full":
                        left.set()

        with ThreadPoolExecutor(CALLERS) as pool:
            for each in [pool.submit(load) for _ in range(CALLERS)]:
                each.result()
        if target_ms is None:
            assert set(found) == {"full"}
            return
        assert left.is_set(), "auto never left the best level"
        assert found[0] == "full"
