"""Speed and time left are those of this run; reports come no more often than the interval."""

from __future__ import annotations

from hmc.pipelines import Progress
from hmc.pipelines.progress import Meter


def test_speed_does_not_count_lines_of_an_earlier_run() -> None:
    now, reports = [100.0], list[Progress]()
    meter = Meter(1000, reports.append, interval=5.0, clock=lambda: now[0])
    meter.skip(600)
    assert reports == [Progress(600, 1000, 0.0)]
    assert reports[0].seconds_left is None
    for _ in range(40):
        now[0] += 0.25
        meter.add()
    assert reports[1:] == [Progress(620, 1000, 4.0), Progress(640, 1000, 4.0)]
    assert reports[-1].seconds_left == 90.0


def test_the_last_line_is_reported_at_once() -> None:
    reports = list[Progress]()
    meter = Meter(2, reports.append, interval=5.0, clock=lambda: 0.0)
    meter.add()
    assert reports == []
    meter.add()
    assert [found.lines for found in reports] == [2]
