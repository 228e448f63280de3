"""How users write an amount of device memory."""

from __future__ import annotations

import pytest

from hmc.artifact.errors import InvalidRequestError
from hmc.serving.runtime.memory.budget import DEFAULT_BUDGET, Budget, parse_budget


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("8GiB", Budget(8 * 2**30)),
        ("500MB", Budget(500_000_000)),
        ("1.5 gib", Budget(3 * 2**29)),
        ("123456", Budget(123456)),
        ("1000B", Budget(1000)),
        ("80%", Budget(share=0.8)),
        (" 12.5 % ", Budget(share=0.125)),
        ("100%", Budget(share=1.0)),
    ],
)
def test_what_can_be_written(text: str, budget: Budget) -> None:
    assert parse_budget(text) == budget


@pytest.mark.parametrize("text", ["", "0", "0%", "101%", "-1", "8 Gb/s", "GiB", "80 percent", "1e9", "0.5", "5GG"])
def test_what_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="write bytes such as 8GiB, 500MB or 1000000000, or a share"):
        parse_budget(text)


def test_a_share_is_of_the_free_memory() -> None:
    assert Budget(share=0.25).bytes_of(1000) == 250
    assert DEFAULT_BUDGET.bytes_of(1000) == 800
    assert Budget(share=0.25).bytes_of(None) is None
    assert Budget(77).bytes_of(None) == 77
