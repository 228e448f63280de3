"""What a search says: its table, its JSON, and what to do when nothing was found."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from rich.console import Console
from tests.benchmark.fakes import quality

from hmc.artifact import Precision
from hmc.benchmark import Candidate, Limits, Search
from hmc.benchmark.budget.report import refusal, table, to_dict, warning
from hmc.benchmark.budget.search import search


def candidate(level: str, heads: int, loss: float, noise: float, p50_ms: float) -> Candidate:
    return Candidate(level, heads, quality(level, 30 - loss, -loss - noise, noise - loss), loss + noise, p50_ms)


FULL = candidate("full", 24, 0.0, 0.0, 20.0)


def searched(limits: Limits, *others: Candidate, everything: Candidate = FULL) -> Search:
    """A search among these alone; any other number of heads fails."""
    levels = {c.heads: c for c in (everything, *others)}

    def evaluate(heads: int) -> Candidate:
        return levels.get(heads) or candidate(f"h{heads}", heads, 9.0, 0.5, 1 + heads / 2)

    return search(24, evaluate, limits)


def printed(done: Search) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(table(done))
    return capture.get()


def test_table_and_json_tell_of_every_level() -> None:
    done = searched(Limits(max_bleu_drop=0.5, confidence=0.95), candidate("h23", 23, 0.2, 0.1, 19.0))
    text = printed(done)
    assert "Tried on 10 sentences of test, Δ against full" in text
    assert "most at 95 %" in text
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "full 24 30.00 – – 20.0 keeps" in lines
    assert "h23 23 29.80 -0.20 [-0.30, -0.10] 0.30 19.0 found" in lines
    assert "h12 12 21.00 -9.00 [-9.50, -8.50] 9.50 7.0 loses too much" in lines

    data = json.loads(json.dumps(to_dict(done)))
    assert (data["found"], data["max_bleu_drop"], data["confidence"]) == ("h23", 0.5, 0.95)
    assert [c["level"] for c in data["tried"]] == [c.level for c in done.tried]
    assert data["tried"][1]["loss_at_most"] == pytest.approx(0.3)
    assert data["tried"][1]["p50_ms"] == 19.0


def test_recorded_json_holds_times_only_where_they_decided() -> None:
    """What goes into a bundle must be the same when it is compiled again."""
    drop = searched(Limits(max_bleu_drop=0.5, confidence=0.95), candidate("h23", 23, 0.2, 0.1, 19.0))
    both = searched(
        Limits(max_bleu_drop=0.5, max_latency_ms=19.5, confidence=0.95), candidate("h23", 23, 0.2, 0.1, 19.0)
    )
    assert "p50_ms" not in to_dict(drop, latency=False)["tried"][0]
    assert to_dict(both, latency=False)["tried"][0]["p50_ms"] == 20.0


def test_noise_is_told_with_the_sentences_it_would_take() -> None:
    done = searched(Limits(max_bleu_drop=0.25, confidence=0.95), candidate("h23", 23, 0.05, 0.4, 19.0))
    reason = refusal(done)
    assert reason is not None
    assert "no level is sure to lose at most 0.25 against full; the nearest, h23, lost 0.05" in reason
    assert "on 10 sentences the loss may be up to 0.45, at 95 % confidence" in reason
    assert "0.45 19.0 may lose too much" in printed(done).replace("  ", " ")
    assert "score about 40" in reason  # noise 0.4 must come down to 0.2: four times the sentences


def test_a_real_loss_is_not_blamed_on_noise() -> None:
    reason = refusal(searched(Limits(max_bleu_drop=0.25, confidence=0.95), candidate("h23", 23, 0.6, 0.1, 19.0)))
    assert reason is not None
    assert "h23, lost 0.60 as measured" in reason
    assert "`hmc prune`" in reason


def test_a_precision_that_costs_too_much_by_itself() -> None:
    everything = candidate("full-int8", 24, 0.6, 0.1, 9.0)
    done = searched(Limits(max_bleu_drop=0.25, confidence=0.95), everything=everything)
    assert done.tried == (everything,)
    assert "full-int8, lost 0.60 with all its heads, for its precision alone" in str(refusal(done))


def test_all_heads_at_a_cheaper_precision_are_an_answer() -> None:
    done = searched(Limits(max_bleu_drop=0.25, confidence=0.95), everything=candidate("full-int8", 24, 0.1, 0.1, 9.0))
    assert done.found is not None
    assert done.found.level == "full-int8"
    assert refusal(done) is None


def test_nothing_is_fast_enough() -> None:
    done = searched(Limits(max_latency_ms=1.2))
    assert "no level answers within 1.2 ms: the fastest found is h1 with 1.5 ms" in str(refusal(done))


@pytest.mark.parametrize("heads", [0, 1])
@pytest.mark.parametrize("latency", [None, 19.0, 21.0])
def test_a_model_without_fewer_heads_to_try(heads: int, latency: float | None) -> None:
    """The reference level is then the only candidate."""
    only = replace(FULL, heads=heads)
    done = search(heads, lambda _: only, Limits(max_bleu_drop=0.5, max_latency_ms=latency, confidence=0.95))
    if latency == 21.0:
        assert refusal(done) is None  # all heads keep both limits
    else:
        said = f"full has {heads} open head{'s' * (not heads)}: there is no level with fewer heads to search for"
        assert refusal(done) == said


def test_the_limit_that_failed_is_named() -> None:
    slow = candidate("full", 24, 0.0, 0.0, 40.0)
    keeping = [candidate(f"h{n}", n, 0.1, 0.1, 10.0 + n) for n in (23, 22, 21)]
    late = searched(Limits(max_bleu_drop=0.25, max_latency_ms=30.9, confidence=0.95), *keeping, everything=slow)
    assert str(refusal(late)).startswith(
        "latency: h21 has the fewest heads that keep a drop of 0.25 BLEU and takes 31.0 ms, more than 30.9"
    )
    lossy = searched(Limits(max_bleu_drop=0.15, max_latency_ms=15.0, confidence=0.95), *keeping, everything=slow)
    assert str(refusal(lossy)).startswith("BLEU: no level is sure to lose at most 0.15")


def test_all_heads_within_both_limits_are_an_answer() -> None:
    done = searched(Limits(max_bleu_drop=0.15, max_latency_ms=20.0, confidence=0.95))
    assert done.found == FULL
    assert refusal(done) is None


def test_an_uneven_fall_is_told() -> None:
    uneven = searched(
        Limits(max_bleu_drop=0.5, confidence=0.95), *(candidate(f"h{n}", n, 0.1, 0.1, 9.0) for n in (23, 22, 19))
    )
    assert uneven.found is not None
    assert "h19 keeps the drop though h21, h20 with more heads did not" in str(warning(uneven))
    even = searched(Limits(max_bleu_drop=0.5, confidence=0.95), candidate("h23", 23, 0.2, 0.1, 19.0))
    assert warning(even) is None


@pytest.mark.parametrize(
    ("precision", "shortlist", "advice"),
    [
        ("fp32", False, "Allow more, add --precision int8, or lower --beam"),
        ("int8", False, "Allow more, add --shortlist, or lower --beam"),
        ("int4", True, "Allow more, or lower --beam"),
        ("fp16", False, "Allow more, or lower --beam"),
    ],
)
def test_the_advice_is_what_was_not_tried(precision: Precision, shortlist: bool, advice: str) -> None:
    slow = [replace(candidate(f"h{n}", n, 1.0, 0.5, 20.0), precision=precision, shortlist=shortlist) for n in (24, 1)]
    reason = refusal(Search(Limits(max_latency_ms=1.0), tuple(slow), None))
    assert reason is not None
    assert advice in reason


def test_a_twin_that_loses_too_much_is_not_its_precision_s_fault() -> None:
    twin = replace(candidate("full-int8-shortlist", 24, 9.0, 0.5, 5.0), shortlist=True)
    reason = refusal(Search(Limits(max_bleu_drop=1.0, confidence=0.95), (twin,), None))
    assert reason is not None
    assert reason.endswith("lost 9.00 with all its heads: allow a larger drop, or longer lists")
    assert to_dict(Search(Limits(max_bleu_drop=1.0, confidence=0.95), (twin,), None))["found"] is None
