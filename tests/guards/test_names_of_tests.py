"""Every process that collects the tests gives them the same names."""

from __future__ import annotations

from typing import Any

import pytest


def test_no_name_holds_bytes(request: pytest.FixtureRequest) -> None:
    """They may be packed with the time, and then two processes that collect together disagree."""

    def parts(name: str) -> list[str]:
        return name.partition("[")[2].removesuffix("]").split("-")

    items: list[Any] = request.session.items
    given = [
        (item.name, value) for item in items if hasattr(item, "callspec") for value in item.callspec.params.values()
    ]
    assert [
        name for name, value in given if isinstance(value, bytes) and value and ascii(value)[2:-1] in parts(name)
    ] == []
