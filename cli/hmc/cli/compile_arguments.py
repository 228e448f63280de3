"""Words of the `hmc compile` command line, and what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hmc.artifact.bundle import Precision
    from hmc.benchmark.budget import Limits
    from hmc.benchmark.text import TestSet
    from hmc.compiler.bundle_builder import LevelRequest
    from hmc.compiler.layouts import Ranking
    from hmc.compiler.shortlist_text import ShortlistText


def read_shortlist(
    files: tuple[Path, Path] | None, frequent: int | None, best: int | None, pairs: TestSet | None
) -> tuple[ShortlistText | None, int]:
    """Parallel text for shortlists, and the sizes asked for; and how many of its pairs are left out, because a side of
    theirs is in the test set `pairs`: a list that knows the answers would score too well. Raises InvalidRequestError.
    """
    from hmc.artifact.errors import InvalidRequestError
    from hmc.benchmark.text import read_sentences
    from hmc.compiler.shortlist_text import BEST, FREQUENT, ShortlistText

    if files is None:
        if frequent is not None or best is not None:
            raise InvalidRequestError("--shortlist-frequent and --shortlist-best need --shortlist SRC TGT")
        return None, 0
    for name, value in (("frequent", frequent), ("best", best)):
        if value is not None and value < 1:
            raise InvalidRequestError(f"--shortlist-{name} {value}: choose 1 or more")
    left_out, (sources, targets) = 0, (read_sentences(file) for file in files)
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
        sources, targets = [sources[n] for n in kept], [targets[n] for n in kept]
    text = ShortlistText(sources, targets, FREQUENT if frequent is None else frequent, BEST if best is None else best)
    return text, left_out


def parse_limits(drop: float | None, latency_ms: float | None, confidence: float | None) -> Limits | None:
    """Command-line numbers → limits; None where nothing is searched for. Raises InvalidRequestError."""
    from hmc.artifact.errors import InvalidRequestError
    from hmc.benchmark.budget import Limits

    if confidence is not None and drop is None:
        raise InvalidRequestError("--confidence says how sure a BLEU drop is kept: give --max-bleu-drop too")
    if drop is None and latency_ms is None:
        return None
    return Limits(drop, latency_ms) if confidence is None else Limits(drop, latency_ms, confidence)


def parse_precisions(text: str) -> list[Precision]:
    """`fp32,int8` → a list. Raises InvalidRequestError."""
    from typing import get_args

    from hmc.artifact.bundle import Precision
    from hmc.artifact.errors import InvalidRequestError

    known: dict[str, Precision] = {name: name for name in get_args(Precision)}
    words = [part.strip() for part in text.split(",") if part.strip()]
    if not words or not known.keys() >= set(words):
        raise InvalidRequestError(f"--precision {text!r}: choose fp32, int8, int4, fp16, bf16, or several with commas")
    return [known[word] for word in words]


def parse_requests(
    checkpoints: list[str], target_heads: str, layouts: list[Path], rank_by: str | None, *, searching: bool
) -> list[LevelRequest]:
    """Command-line words → level requests; searching: one for all heads, where a number is searched for.

    Raises InvalidRequestError.
    """
    from functools import partial

    from hmc.artifact.budgets import parse_budgets
    from hmc.artifact.errors import InvalidRequestError
    from hmc.artifact.layout_files import read_layout
    from hmc.compiler.bundle_builder import LevelRequest

    ranking, named = _ranking(rank_by), [c for c in checkpoints if "=" in c]
    if searching and (target_heads or layouts or named):
        raise InvalidRequestError(
            "--max-bleu-drop and --max-latency-ms search in one checkpoint: give it alone, without --target-heads and "
            "--layout"
        )
    if ranking and not (searching or target_heads):
        raise InvalidRequestError("--rank-by chooses among heads: give --target-heads or a limit to search for, too")
    if named:
        if len(named) != len(checkpoints) or target_heads or layouts:
            raise InvalidRequestError(
                "give either one CHECKPOINT with --target-heads or --layout, or NAME=CHECKPOINT pairs without them"
            )
        return [_named(word) for word in named]
    if len(checkpoints) != 1:
        raise InvalidRequestError("several checkpoints need names: full=A h36=B")
    checkpoint = Path(checkpoints[0])
    budgets = parse_budgets(target_heads, layout=partial(read_layout, checkpoint))
    if target_heads and not budgets:
        raise InvalidRequestError(f"--target-heads {target_heads!r} holds no number; write some, e.g. 144,72,36")
    given = [
        LevelRequest(checkpoint, read_layout(path), _level_name(path.stem, f"--layout {path}")) for path in layouts
    ]
    chosen = [LevelRequest(checkpoint, budget, rank_by=ranking) for budget in budgets]
    return [*chosen, *given] or [LevelRequest(checkpoint, rank_by=ranking)]


def _ranking(word: str | None) -> Ranking | None:
    from hmc.artifact.errors import InvalidRequestError
    from hmc.compiler.layouts import WRITTEN_BY

    if found := next((ranking for ranking in WRITTEN_BY if ranking == word), None):
        return found
    if word is not None:
        raise InvalidRequestError(f"--rank-by {word}: choose {' or '.join(WRITTEN_BY)}")
    return None


def _named(word: str) -> LevelRequest:
    from hmc.artifact.errors import InvalidRequestError
    from hmc.compiler.bundle_builder import LevelRequest

    name, _, path = word.partition("=")
    if not path:
        raise InvalidRequestError(f"{word!r}: write NAME=CHECKPOINT")
    return LevelRequest(Path(path), name=_level_name(name, repr(word)))


def _level_name(name: str, where: str) -> str:
    """`name`, if a level may be called so. Raises InvalidRequestError."""
    import re

    from hmc.artifact.bundle import LEVEL_NAME
    from hmc.artifact.bundle_files import RESERVED
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
