"""Writes the synchronous client: the one for asyncio without `async` and `await`.

python -m tests.sync_client
"""

from __future__ import annotations

import re

from tests.processes import REPOSITORY

CLIENTS = REPOSITORY / "serving" / "hmc" / "serving" / "client"
WORDS = (
    (r"\A", "# Made from aio.py by `python -m tests.sync_client`. Do not edit.\n"),
    (r"The client for asyncio", "The synchronous client"),
    (r", for one event loop: make it where that runs, and use it", ". Thread-safe. Use it"),
    (r"`Client` has the same methods without asyncio", "`AsyncClient` has the same methods for asyncio"),
    (r"AsyncGenerator\[(\w+), None\]", r"Generator[\1, None, None]"),
    (r" \| AsyncIterable\[str\]|AsyncIterable, ", ""),
    (r"\basync |\bawait ", ""),
    (r"\baio_|\bAsync(?!Client`)|(?<=\b__)a(?=enter|exit)|\ba(?=closing)", ""),
)
"""Patterns and what takes their place, in this order."""


def sync_client() -> str:
    """The module of the synchronous client."""
    source = (CLIENTS / "aio.py").read_text(encoding="utf-8")
    for pattern, words in WORDS:
        source = re.sub(pattern, words, source)
    return source


if __name__ == "__main__":
    (CLIENTS / "client.py").write_text(sync_client(), encoding="utf-8")
