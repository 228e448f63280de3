"""Writes docs/settings.md: `python -m hmc.serving.server.configuration.reference > docs/settings.md`."""

from __future__ import annotations

import json
import sys
from typing import Any

from hmc.serving.server.configuration.report import plain
from hmc.serving.server.configuration.schema import Setting, schema

HEAD = """# Settings of `hmc serve`

This page is made from the code: `make docs` writes it. [Operations](operations.md#configure-a-server) says how
settings are given and which of several wins.

| key in a file | option | variable | default | meaning |
|---|---|---|---|---|
"""


def page() -> str:
    """The whole page in Markdown."""
    return HEAD + "".join(map(_row, schema()))


def _row(setting: Setting) -> str:
    cells = (f"`{setting.key}`", f"`{setting.option}`", f"`{setting.variable}`", _default(setting.default))
    return f"| {' | '.join(cells)} | {setting.meaning.replace('|', chr(92) + '|')} |\n"


def _default(value: Any) -> str:
    return "–" if value is None or value == () else f"`{json.dumps(plain(value))}`".replace('"', "")


if __name__ == "__main__":
    sys.stdout.write(page())
