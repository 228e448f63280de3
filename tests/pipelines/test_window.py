"""The window of shards in work."""

from __future__ import annotations

from hmc.pipelines.window import AT_ONCE, in_turn, longest_first


def test_shards_come_in_turn_and_few_are_submitted_ahead() -> None:
    submitted: list[int] = []

    def submit(shard: int) -> str:
        submitted.append(shard)
        return f"of {shard}"

    for done, (shard, waiting) in enumerate(in_turn(range(5), submit)):
        assert (shard, waiting) == (done, f"of {done}")
        assert len(submitted) == min(done + AT_ONCE, 5)


def test_the_longest_line_is_submitted_first() -> None:
    submitted: list[str] = []

    def submit(line: str) -> str:
        submitted.append(line)
        return line.upper()

    found = longest_first(["a", "ccc", "bb", "ddd"], str, submit)
    assert submitted == ["ccc", "ddd", "bb", "a"]
    assert found == ["A", "CCC", "BB", "DDD"]
