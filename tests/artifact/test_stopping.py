"""SIGTERM and Ctrl-C: raised, noted, heeded at the end of a block; a second one ends the process."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.processes import environment

from hmc.artifact import stopping
from hmc.artifact.stopping import Stopped, at_once, defer_from_now, deferred, noted, stoppable


@pytest.fixture(autouse=True)
def usual_handlers() -> Iterator[None]:
    """As in a program that runs in the foreground: what a shell starts in the background ignores Ctrl-C."""
    usual: dict[int, Any] = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: int = signal.SIGTERM) -> None:
    signal.raise_signal(number)


def ended(job: Callable[[], object], kept: str = "") -> Stopped:
    """How a job ends in `stoppable`."""
    with pytest.raises(Stopped) as stopped, stoppable(lambda: kept):
        job()
    return stopped.value


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_job_with_what_is_kept(number: int) -> None:
    before = [signal.getsignal(each) for each in stopping.SIGNALS]
    stopped = ended(lambda: send(number), "three shards are kept")
    assert (stopped.number, str(stopped)) == (number, "three shards are kept")
    assert [signal.getsignal(each) for each in stopping.SIGNALS] == before
    assert noted() == 0


def test_the_inner_job_says_what_is_kept() -> None:
    def inside() -> None:
        with stoppable(lambda: "inner"):
            send()

    def after() -> None:
        with stoppable(lambda: "inner"):
            pass
        send()

    assert str(ended(inside, "outer")) == "inner"
    assert str(ended(after, "outer")) == "outer"


def test_a_deferred_signal_is_noted_and_raises_at_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    reached = list[int]()

    def job() -> None:
        with deferred():
            with deferred():
                send()
                reached.append(noted())
            reached.append(noted())
        reached.append(0)

    assert ended(job).number == signal.SIGTERM
    assert reached == [signal.SIGTERM] * 2
    assert capfd.readouterr().err == "\nhmc: SIGTERM: the run is saved after this update; again: it ends at once\n"


def test_some_work_in_a_deferred_block_ends_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    reached = list[str]()

    def inside() -> None:
        with deferred(), at_once():
            send()
            reached.append("inside")

    def before() -> None:
        with deferred():
            send()
            with at_once():
                reached.append("before")

    ended(inside)
    ended(before)
    assert reached == []
    assert capfd.readouterr().err.count("hmc: SIGTERM") == 1


def test_one_of_several_processes_does_not_end_alone(capfd: pytest.CaptureFixture[str]) -> None:
    with stoppable(lambda: "", speaks=lambda: False):
        defer_from_now()
        with deferred():
            send()
        assert noted() == signal.SIGTERM
    assert capfd.readouterr().err == ""
    ended(send)  # the next job is not one of several


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stoppable(lambda: ""):
            send(signal.SIGINT)
            assert noted() == 0
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_outside_the_main_thread_nothing_changes() -> None:
    seen = list[object]()

    def work() -> None:
        with stoppable(lambda: ""), deferred(), at_once():
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


def test_a_second_signal_ends_the_process() -> None:
    """One that comes at once is the first one again, as `timeout` sends it to a process and to its group."""

    def status(once: float) -> int:
        lines = (
            "import signal",
            "from hmc.artifact import stopping",
            f"stopping.ONCE_SECONDS = {once}",
            "with stopping.stoppable(lambda: 'kept'), stopping.deferred():",
            "    signal.raise_signal(signal.SIGTERM)",
            "    signal.raise_signal(signal.SIGTERM)",
            "    raise SystemExit(7)",
        )
        return subprocess.run([sys.executable, "-c", "\n".join(lines)], env=environment(), check=False).returncode

    assert status(3600) == 7
    assert status(0) == -signal.SIGTERM
