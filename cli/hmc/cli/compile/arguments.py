"""The options of `hmc compile` as the values that the compiler and the search take."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hmc.artifact.model.budgets import HeadBudget
    from hmc.benchmark.budget.search import Limits
    from hmc.benchmark.measure.text import TestSet
    from hmc.compiler.bundle.requests import LevelRequest
    from hmc.compiler.lexicon import ShortlistText
    from hmc.compiler.weights import Ranking


def read_shortlist(
    files: tuple[Path, Path] | None, frequent: int | None, best: int | None, pairs: TestSet | None
) -> tuple[ShortlistText | None, int]:
    """Reads --shortlist. Returns the text, or None without the option, and the number of sentence pairs left out.

    A pair is left out if its source or its target is in the test set `pairs`: a shortlist that was learned from the
    test set would score too well. Raises InvalidRequestError.
    """
    from hmc.artifact.errors import InvalidRequestError
    from hmc.benchmark.measure.text import read_sentences
    from hmc.compiler.lexicon import BEST, FREQUENT, ShortlistText

    if files is None:
        return None, 0
    for name, value in (("frequent", frequent), ("best", best)):
        if value is not None and value < 1:
            raise InvalidRequestError(f"--shortlist-{name} {value}: choose 1 or more")
    left_out = 0
    (sources, targets) = (read_sentences(file) for file in files)
    if len(sources) != len(targets):
        raise InvalidRequestError(
            f"--shortlist: {files[0]} has {len(sources)} lines and {files[1]} {len(targets)}; line n of one must "
            "translate line n of the other"
        )
    if pairs:
        known = {text.strip() for side in (pairs.sources, pairs.references or ()) for text in side}
        kept = [n for n, both in enumerate(zip(sources, targets, strict=True)) if not known & {t.strip() for t in both}]
        if not kept:
            raise InvalidRequestError("--shortlist: all of its sentences are in --eval; learn from other text")
        left_out = len(sources) - len(kept)
        sources = [sources[n] for n in kept]
        targets = [targets[n] for n in kept]
    text = ShortlistText(sources, targets, FREQUENT if frequent is None else frequent, BEST if best is None else best)
    return text, left_out


def parse_limits(drop: float | None, latency_ms: float | None, confidence: float | None) -> Limits | None:
    """The limits of a search; None if neither limit is given. Raises InvalidRequestError."""
    from hmc.benchmark.budget.search import Limits

    if drop is None and latency_ms is None:
        return None
    return Limits(drop, latency_ms) if confidence is None else Limits(drop, latency_ms, confidence)


def parse_requests(
    checkpoints: list[str], target_heads: str, layouts: list[Path], rank_by: str | None, *, searching: bool
) -> list[LevelRequest]:
    """The levels to compile. searching: a number of heads is searched for, so the request is for all heads.

    Raises InvalidRequestError.
    """
    from hmc.artifact.checkpoint.checkpoint import load_config, read_layout
    from hmc.artifact.errors import InvalidRequestError
    from hmc.artifact.model.budgets import parse_budgets
    from hmc.compiler.bundle.requests import LevelRequest

    ranking = _ranking(rank_by)
    named = [request for request in map(_named, checkpoints) if request]
    if searching and named:
        raise InvalidRequestError("--max-bleu-drop and --max-latency-ms search one checkpoint: give it without a name")
    if named:
        if len(named) != len(checkpoints) or target_heads or layouts:
            raise InvalidRequestError(
                "give either one CHECKPOINT with --target-heads or --layout, or NAME=CHECKPOINT pairs without them"
            )
        return named
    if len(checkpoints) != 1:
        raise InvalidRequestError("several checkpoints need names: full=A h72=B h36=B@36")
    checkpoint = Path(checkpoints[0])
    budgets = parse_budgets(target_heads, layout=lambda: load_config(checkpoint).layout)
    if target_heads and not budgets:
        raise InvalidRequestError(f"--target-heads {target_heads!r} holds no number; write some, e.g. 144,72,36")
    given = [
        LevelRequest(checkpoint, read_layout(path), _level_name(path.stem, f"--layout {path}")) for path in layouts
    ]
    chosen = [LevelRequest(checkpoint, budget, rank_by=ranking) for budget in budgets]
    return [*chosen, *given] or [LevelRequest(checkpoint, rank_by=ranking)]


def _ranking(word: str | None) -> Ranking | None:
    from hmc.artifact.checkpoint.extras import WRITTEN_BY
    from hmc.artifact.errors import InvalidRequestError

    if found := next((ranking for ranking in WRITTEN_BY if ranking == word), None):
        return found
    if word is not None:
        raise InvalidRequestError(f"--rank-by {word}: choose one of {', '.join(WRITTEN_BY)}")
    return None


def _named(word: str) -> LevelRequest | None:
    """The request of a word NAME=CHECKPOINT or NAME=CHECKPOINT@HEADS; None if the word is a path.

    A path may hold `=` and `@` itself, so what exists is a path. Raises InvalidRequestError.
    """
    from hmc.artifact.checkpoint.checkpoint import load_config
    from hmc.artifact.errors import InvalidRequestError
    from hmc.artifact.model.budgets import parse_budgets
    from hmc.compiler.bundle.requests import LevelRequest

    if "=" not in word or Path(word).exists():
        return None
    name, _, path = word.partition("=")
    budgets: Sequence[HeadBudget | None] = [None]
    if "@" in path and not Path(path).exists():
        path, _, heads = path.rpartition("@")
        budgets = parse_budgets(heads, layout=lambda: load_config(Path(path)).layout)
    if not path or len(budgets) != 1:
        raise InvalidRequestError(f"{word!r}: write NAME=CHECKPOINT, or NAME=CHECKPOINT@HEADS with one number of heads")
    where = f"{word!r} is no path that exists, and NAME=CHECKPOINT"
    return LevelRequest(Path(path), budgets[0], _level_name(name, where))


def _level_name(name: str, where: str) -> str:
    """Returns `name` if a level may have it. `where` begins the error. Raises InvalidRequestError."""
    import re

    from hmc.artifact.bundle.manifest import LEVEL_NAME, RESERVED
    from hmc.artifact.errors import InvalidRequestError

    if not re.fullmatch(LEVEL_NAME, name):
        raise InvalidRequestError(
            f"{where}: a level's name has letters, digits, '.', '_' and '-' and begins with a letter or a digit"
        )
    if name in RESERVED:
        raise InvalidRequestError(
            f"{where}: a bundle has a file or folder called {name}; choose another name for the level"
        )
    return name
