"""The table of two reports of `cuda_counts`: before a change, and after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Report = dict[str, Any]
Row = tuple[str, Callable[[Report], str]]
MISSING = "–"


def comparison(before: Report, after: Report) -> str:
    """A Markdown table with a row for each count. A count that a report lacks is a dash."""
    rows = [(label, _read(read, before), _read(read, after)) for label, read in ROWS]
    lines = [f"| {label} | {old} | {new} |" for label, old, new in rows if (old, new) != (MISSING, MISSING)]
    return "\n".join(["| counted | before | after |", "|---|---|---|", *lines])


WAYS = {"cudnn": "uncaptured, attention as ONNX Runtime chooses"}
"""Names of ways that the table writes out."""


def _read(read: Callable[[Report], str], report: Report) -> str:
    try:
        return read(report)
    except (KeyError, IndexError):
        return MISSING


def _step(way: str, setting: str) -> list[Row]:
    """Rows of one setting, run in one way."""

    def of(report: Report) -> Any:
        return report["steps"][way][setting]

    title = f"{setting}, {WAYS.get(way, way)}: "
    return [
        (f"{title}launches of a step", lambda r: _range(of(r), "launches")),
        (f"{title}copies to the device + to the host", lambda r: _copies(of(r))),
        (f"{title}bytes across the bus", lambda r: _range(of(r), "bytes")),
        (f"{title}waits", lambda r: _range(of(r), "waits")),
    ]


def _range(found: Any, name: str) -> str:
    """The middle step; the mean too where steps differ."""
    middle, mean = found["middle"][name], found["mean"][name]
    return f"{middle:,.0f}" if abs(middle - mean) <= 0.1 * max(middle, 1) else f"{middle:,.0f} (mean {mean:,.1f})"


def _copies(found: Any) -> str:
    return f"{_range(found, 'copies_to_device')} + {_range(found, 'copies_to_host')}"


def _python(setting: str) -> Row:
    def read(report: Report) -> str:
        found = report["steps"]["served"][setting]["python_us"]
        return f"{found['median']:,.0f}"

    return f"{setting}: Python a step, µs", read


def _calls(beam: str) -> list[Row]:
    def read(report: Report) -> str:
        found = report["encoder"][beam]
        return f"{found['encoder_calls']:,} ({found['decoder_steps']:,} decoder steps)"

    return [(f"encoder calls for the queued sentences, beam {beam}", read)]


def _growth(name: str, label: str) -> Row:
    """What is held after the warm-up, and after the last sentence."""

    def read(report: Report) -> str:
        found = report["natural"]
        last = max((key for key in found if key.isdecimal()), key=int)
        return f"{found['warm'][name]:,} → {found[last][name]:,}"

    return f"{label}: warm → after all sentences", read


def _then(states: tuple[str, ...], label: str) -> Row:
    """Bytes of the device in these states, one after the other."""

    def read(report: Report) -> str:
        found = report["natural"]
        return " → ".join(f"{found[state]['device_bytes']:,}" for state in states if state in found)

    return label, read


def _megabytes(state: str, label: str) -> Row:
    def read(report: Report) -> str:
        found = report["memory"]
        return f"{found[state] / 1e6:,.0f} MB ({found[state] / found['weights']:.2f}×)"

    return label, read


def _long(setting: str) -> Row:
    def read(report: Report) -> str:
        return f"{report['long'][setting]['large_bytes'] / 1e6:,.0f} MB"

    return f"{setting}: caches moved through the host in translations of 150 tokens", read


ROWS: list[Row] = [
    *_step("served", "32x1"), *_step("served", "32x4"), *_step("served", "256x4"),
    *_step("uncaptured", "32x1")[:1], *_step("uncaptured", "32x4")[:1],
    *_step("uncaptured", "32x1+prefix")[:1], *_step("uncaptured", "32x4+prefix")[:1],
    *_step("cudnn", "32x1+prefix")[:1], *_step("cudnn", "32x4+prefix")[:1],
    *_step("served", "32x1+prefix"), *_step("served", "32x4+prefix"),
    _python("1x1"), _python("32x1"), _python("32x4"), _python("256x4"),
    *_calls("1"), *_calls("4"),
    _growth("plans", "cuDNN plans"), _growth("graphs", "captured graphs"), _growth("bindings_made", "bindings made"),
    _growth("device_bytes", "device bytes"), _growth("host_bytes", "host bytes"),
    _then(("warm", "idle", "again"), "device bytes: warm → idle → used again"),
    _megabytes("opened", "device memory of two levels, all graphs opened (over one copy of the weights)"),
    _megabytes("used", "the same, after requests of every kind"), _megabytes("idle", "the same, idle again"),
    _long("32x1"), _long("32x4"), _long("256x4"),
]  # fmt: skip
