"""Whether a bundle is whole: everything its manifest names is there, as it was written, and fits together."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from hmc.artifact.architecture import Architecture
from hmc.artifact.bundle import FIX, Level, Manifest, decoder_path, encoder_path, read_manifest, shortlist_path
from hmc.artifact.errors import HmcError, InvalidArtifactError
from hmc.artifact.files import sha256_file
from hmc.artifact.tokenizer_files import MARIAN, SEPARATE, TOKENIZER


def bundle_problems(path: Path | str) -> list[str]:
    """Every problem of a bundle: manifest, head layouts, missing files, wrong digests. Empty when it can be served."""
    path = Path(path)
    try:
        manifest = read_manifest(path)
    except InvalidArtifactError as error:
        return error.problems
    problems = []
    names = [level.name for level in manifest.levels]
    problems += [f"level {n!r} is listed {names.count(n)} times" for n in sorted(set(names)) if names.count(n) > 1]
    if manifest.default_level not in names:
        problems.append(f"default level {manifest.default_level!r} is not among the levels")
    for level in manifest.levels:
        problems += _level_problems(level, manifest.architecture)
    expected = {name: digest for level in manifest.levels for name, digest in level.files.items()}
    joint = manifest.architecture.source_vocab_size is None
    forms = ((TOKENIZER,), MARIAN) if joint else (SEPARATE,)
    if set(manifest.tokenizer_files) not in [set(form) for form in forms]:
        expected_files = " or ".join(", ".join(form) for form in forms)
        problems.append(f"tokenizer files {sorted(manifest.tokenizer_files)}: expected {expected_files}")
    expected |= manifest.tokenizer_files
    return problems + [p for name, digest in sorted(expected.items()) for p in _file_problems(path, name, digest)]


def _level_problems(level: Level, arch: Architecture) -> list[str]:
    problems = []
    try:
        problems += [f"level {level.name}: {p}" for p in arch.layout_problems(level.layout)]
    except HmcError as error:
        problems.append(f"level {level.name}: {error}")
    needed = {encoder_path(level.name), decoder_path(level.name)}
    if level.shortlist:
        needed |= {level.shortlist, shortlist_path(level.name)}
    return problems + [f"level {level.name}: {name} is not listed" for name in sorted(needed - set(level.files))]


def _file_problems(root: Path, name: str, digest: str) -> list[str]:
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        return [f"{name}: path leaves the bundle"]
    try:
        if not (root / name).is_file():
            return [f"{name} is missing"]
        found = sha256_file(root / name)
    except OSError as error:
        return [f"{name} cannot be read: {error.strerror}"]
    if found != digest:
        return [f"{name} has sha256 {found[:12]}…, the manifest says {digest[:12]}…: the file was changed or cut short"]
    return []


def validate(path: Path | str) -> Manifest:
    """Checks the whole bundle and returns its manifest. Raises InvalidArtifactError that lists every problem."""
    manifest = read_manifest(path)
    if problems := bundle_problems(path):
        raise InvalidArtifactError(f"bundle {path}", problems, FIX)
    return manifest
