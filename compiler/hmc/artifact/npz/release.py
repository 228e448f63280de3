"""The files of a Marian model in a folder: weights, vocabularies, SentencePiece models, and what they say of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hmc.artifact.errors import HmcError
from hmc.artifact.npz.yaml_text import Value, parse_yaml, utf8_text
from hmc.artifact.tokenizer.files import SOURCE, TARGET

DECODER = "decoder.yml"
"""Settings of marian-decoder, which name the model and its vocabularies. OPUS-MT has it; any folder may lack it."""
README = "README.md"
SEVERAL = "mul"
"""The tag of several languages (ISO 639-2)."""
OTHER_PIECES = ("source.bpe", "target.bpe", "source.tcmodel")
"""Segmentation of OPUS-MT's oldest models."""


@dataclass
class Release:
    """Where the files are. `problems` names each missing file, and what to do."""

    folder: Path
    weights: Path | None = None
    vocabularies: list[Path] = field(default_factory=list)
    """One, or that of sources and that of targets: YAML, SentencePiece models whose ids are token ids, or text with a
    piece a line."""
    source_pieces: Path | None = None
    target_pieces: Path | None = None
    decoding: dict[str, Any] = field(default_factory=dict)
    """Settings of decoder.yml under Transformers' names."""
    languages: tuple[str | None, str | None] = (None, None)
    problems: list[str] = field(default_factory=list)


def is_release(folder: Path) -> bool:
    """Whether a folder, or the only folder in it, holds a Marian model in .npz."""
    return folder.is_dir() and any(root_of(folder).glob("*.npz*"))


def root_of(folder: Path) -> Path:
    """The folder itself, or the only folder in it if that holds the model. An archive may have either form."""
    if any(folder.glob("*.npz*")) or not folder.is_dir():
        return folder
    inside = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith((".", "__"))]
    return inside[0] if len(inside) == 1 else folder


def find_release(folder: Path, weights: Path | None = None) -> Release:
    """Finds the files of a model. The files are those that decoder.yml names. Without it, there must be one file of
    each kind.

    weights: the .npz file, if it is known.
    """
    release = Release(folder if weights else root_of(folder), weights)
    options: dict[str, Value] = {}
    if (release.folder / DECODER).is_file():
        try:
            options = parse_yaml(utf8_text(release.folder / DECODER), DECODER)
        except HmcError as error:
            release.problems.append(str(error))
    if weights is None:
        _find_weights(release, _listed(options, "models"))
    _find_vocabularies(release, _listed(options, "vocabs"))
    _find_pieces(release)
    release.decoding = _decoding(options)
    release.languages = _languages(release.folder / README)
    return release


def _find_weights(release: Release, named: list[str]) -> None:
    if len(named) > 1:
        release.problems.append(f"{DECODER} names {len(named)} models that decode together; name one of them in it")
        return
    candidates = sorted(release.folder.glob("*.npz*"))
    if named:
        path = _beside(release, named[0])
        if path is None:
            release.problems.append(f"{named[0]} is missing, and {DECODER} names it as the model")
        release.weights = path
    elif len(candidates) == 1:
        release.weights = candidates[0]
    else:
        names = ", ".join(path.name for path in candidates[:3]) or "none"
        release.problems.append(f"there must be one .npz file, or a {DECODER} that names it; found: {names}")


def _find_vocabularies(release: Release, named: list[str]) -> None:
    if not named:
        patterns = ("*vocab*.yml", "*vocab*.yaml", "*vocab*.spm", "*.vocab")
        candidates = next((sorted(release.folder.glob(p)) for p in patterns if any(release.folder.glob(p))), [])
        named = [path.name for path in candidates]
        if len(named) == 2:
            sources = [name for name in named if re.search(r"(^|[._-])(src|source)", name)]
            if len(sources) != 1:
                release.problems.append(
                    f"{named[0]} and {named[1]}: their names do not say which is the vocabulary of sources; write a "
                    f"{DECODER} with `vocabs: [SOURCE, TARGET]`"
                )
                return
            named.sort(key=lambda name: name not in sources)
    if not 1 <= len(named) <= 2:
        listed = f"found: {', '.join(named[:3])}" if named else "found none"
        release.problems.append(f"there must be one vocabulary (*.vocab.yml), or one for each side; {listed}")
        return
    for name in dict.fromkeys(named):
        path = _beside(release, name)
        if path is None:
            release.problems.append(f"{name} is missing: it is a vocabulary of the model")
        else:
            release.vocabularies.append(path)


def _find_pieces(release: Release) -> None:
    """source.spm and target.spm; a vocabulary that is a SentencePiece model is also the one of its side."""
    models = [path for path in release.vocabularies if path.suffix == ".spm"]
    places = [release.folder / SOURCE, release.folder / TARGET]
    sides: list[Path | None] = []
    for side, place in enumerate(places):
        model = models[min(side, len(models) - 1)] if models else None
        sides.append(place if place.is_file() else model)
    release.source_pieces, release.target_pieces = sides
    for path, name in zip(sides, (SOURCE, TARGET), strict=True):
        if path is None:
            other = next((name for name in OTHER_PIECES if (release.folder / name).is_file()), None)
            hint = f"; {other} is of another segmentation, which HMC does not have" if other else ""
            release.problems.append(f"{name} is missing{hint}")


def _beside(release: Release, name: str) -> Path | None:
    """A file that decoder.yml names by any path: only its last part counts, as archives are made elsewhere."""
    path = release.folder / Path(name).name
    return path if path.is_file() else None


def _listed(options: dict[str, Value], name: str) -> list[str]:
    value = options.get(name, [])
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]


def _decoding(options: dict[str, Value]) -> dict[str, Any]:
    """Beam size and length normalisation, as the fields of Transformers that a checkpoint records."""
    decoding: dict[str, Any] = {}
    for name, field_name, kind in (("beam-size", "num_beams", int), ("normalize", "length_penalty", float)):
        value = options.get(name)
        try:
            if isinstance(value, str):
                decoding[field_name] = kind(value)
        except ValueError:
            continue  # `normalize: true` names no number
    return decoding


def _languages(readme: Path) -> tuple[str | None, str | None]:
    """Source and target language of an OPUS-MT README: `* source language(s): eng`. Several are `mul`."""
    text = utf8_text(readme) if readme.is_file() else ""
    languages = []
    for side in ("source", "target"):
        line = re.search(rf"^\s*[*-]\s*{side} languages?(?:\(s\))?:\s*(.+)$", text, re.MULTILINE)
        names = re.findall(r"[A-Za-z]{2,3}(?:_[A-Za-z]{2,8})*", line[1]) if line else []
        language = names[0] if names else None
        languages.append(language if len(set(names)) <= 1 else SEVERAL)
    return languages[0], languages[1]
