"""Adding a vocabulary map to a CTranslate2 model directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hmc.artifact.bundle.shortlist import Lexicon


def write_vocabulary_map(lexicon: Lexicon, pieces: Sequence[str], model: Path) -> None:
    """Adds the lexicon to a model directory, in CTranslate2's form: a line of candidates for each source token, which
    is its own candidate too where there is one vocabulary, and one for those that are always there."""
    lines = ["\t" + " ".join(pieces[t] for t in lexicon.always)]
    for token, piece in enumerate(pieces[: lexicon.source_size]):
        if token != lexicon.pad_id:
            found = lexicon.targets[lexicon.starts[token] : lexicon.starts[token + 1]].tolist()
            own = [token] if lexicon.target_size is None else []
            lines.append(f"{piece}\t" + " ".join(pieces[t] for t in dict.fromkeys([*own, *found])))
    (model / "vmap.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
