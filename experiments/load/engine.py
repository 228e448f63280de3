"""A worker that translates with the engine in its own process, without a server.

Arguments: a bundle, a level, threads, workers. A request to the worker: `texts`, `beam`, and `at_once`, the most texts
under way (0: all). It answers with the seconds, its own processor time meanwhile, and the translations.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from experiments.support.worker import serve
from hmc.engine.requests.options import DecodeOptions
from hmc.engine.runtime.process_memory import limit_heaps
from hmc.serving.translator import Translator


def main() -> None:
    """Answers requests until the standard input ends."""
    bundle, level, threads, workers = sys.argv[1:5]
    limit_heaps()  # as `hmc serve` does
    with Translator(bundle, level, device="cpu", threads=int(threads), workers=int(workers)) as translator:
        translator.warm_up()

        def answer(asked: dict[str, Any]) -> dict[str, Any]:
            options = DecodeOptions(beam_size=asked["beam"])
            under_way = threading.Semaphore(asked.get("at_once") or len(asked["texts"]))
            futures = []
            began = time.perf_counter()
            cpu = time.process_time()
            for text in asked["texts"]:
                under_way.acquire()
                futures.append(translator.submit(text, options, block=True))
                futures[-1].add_done_callback(lambda _: under_way.release())
            found = [future.result().text for future in futures]
            took = {"seconds": time.perf_counter() - began, "cpu_s": time.process_time() - cpu}
            return {**took, "translations": found}

        serve(lambda: ({}, answer))


if __name__ == "__main__":
    main()
