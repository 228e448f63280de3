"""Results of other threads, brought to an event loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

import pytest

from hmc.artifact.errors import UnavailableError
from hmc.serving.server.threads import Arrivals


def test_results_of_many_threads_arrive() -> None:
    async def main() -> list[int]:
        arrivals = Arrivals()
        futures: list[Future[int]] = [Future() for _ in range(400)]
        waiting = [arrivals.wrap(future) for future in futures]

        def end(part: int) -> None:
            for n in range(part, 400, 4):
                futures[n].set_result(n)

        threads = [threading.Thread(target=end, args=(part,)) for part in range(4)]
        for thread in threads:
            thread.start()
        return list(await asyncio.wait_for(asyncio.gather(*waiting), 30))

    assert asyncio.run(main()) == list(range(400))


def test_errors_arrive() -> None:
    async def main() -> None:
        future: Future[int] = Future()
        future.set_exception(KeyError("lost"))
        await Arrivals().wrap(future)

    with pytest.raises(KeyError, match="lost"):
        asyncio.run(main())


def test_cancelling_goes_both_ways() -> None:
    async def main() -> None:
        arrivals = Arrivals()
        here: Future[int] = Future()
        there: Future[int] = Future()
        waiting = arrivals.wrap(here)
        waiting.cancel()
        await asyncio.wait([waiting])
        await asyncio.sleep(0)
        assert here.cancelled()
        waiting = arrivals.wrap(there)
        there.cancel()
        with pytest.raises(UnavailableError, match="shutting down"):
            await waiting

    asyncio.run(main())


def test_a_result_after_the_loop_has_closed_is_dropped() -> None:
    future: Future[int] = Future()

    async def main() -> None:
        Arrivals().wrap(future)

    asyncio.run(main())
    future.set_result(1)


def test_all_results_come_in_the_order_of_their_futures() -> None:
    async def main() -> tuple[list[int], list[int]]:
        futures: list[Future[int]] = [Future() for _ in range(3)]
        heard: list[int] = []
        for n in (2, 0, 1):
            futures[n].set_result(n)
        return await Arrivals().all(futures, heard.append), sorted(heard)

    assert asyncio.run(main()) == ([0, 1, 2], [0, 1, 2])


@pytest.mark.parametrize("fault", ["error", "refused", "cancelled"])
def test_the_first_error_cancels_the_others(fault: str) -> None:
    futures: list[Future[int]] = [Future() for _ in range(3)]

    def heard(_: int) -> None:
        if fault == "refused":
            raise KeyError("too large")

    async def main() -> None:
        waiting = asyncio.create_task(Arrivals().all(futures, heard))
        await asyncio.sleep(0)
        if fault == "error":
            futures[1].set_exception(KeyError("lost"))
        elif fault == "refused":
            futures[1].set_result(1)
        else:
            waiting.cancel()
        await waiting

    with pytest.raises(asyncio.CancelledError if fault == "cancelled" else KeyError):
        asyncio.run(main())
    assert all(future.cancelled() for future in (futures[0], futures[2]))
