"""Validating a bundle: all files that its manifest or a graph names are there, unchanged, and fit together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from hmc.artifact.bundle.external_data import GraphFile
from hmc.artifact.bundle.manifest import FIX, Level, Manifest, decoder_path, encoder_path, read_manifest, shortlist_path
from hmc.artifact.errors import HmcError, InvalidArtifactError
from hmc.artifact.git_lfs import why
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.program.checks import file_problems, program_problems
from hmc.artifact.program.operations import program_path, read_program
from hmc.artifact.storage.files import sha256_file
from hmc.artifact.tokenizer.files import LANGUAGES, MARIAN, SEPARATE, TOKENIZER

GRAPH = ".onnx"


def validate(path: Path | str) -> Manifest:
    """Checks the whole bundle and returns its manifest. Raises InvalidArtifactError that lists every problem."""
    manifest = read_manifest(path)
    if problems := _problems(Path(path), manifest):
        raise InvalidArtifactError(f"bundle {path}", problems, FIX)
    return manifest


def bundle_problems(path: Path | str) -> list[str]:
    """Every problem that `validate` finds; empty when the bundle can be served.

    These are problems of the manifest, impossible head layouts, files that are missing or changed, and weights that a
    graph reads and the manifest does not list.
    """
    try:
        manifest = read_manifest(path)
    except InvalidArtifactError as error:
        return error.problems
    return _problems(Path(path), manifest)


def _problems(path: Path, manifest: Manifest) -> list[str]:
    names = [level.name for level in manifest.levels]
    problems = [f"level {n!r} is listed {names.count(n)} times" for n in sorted(set(names)) if names.count(n) > 1]
    if manifest.default_level not in names:
        problems.append(f"default level {manifest.default_level!r} is not among the levels")
    for level in manifest.levels:
        problems += _level_problems(level, manifest.architecture)
    joint = manifest.architecture.source_vocab_size is None
    forms = ((TOKENIZER,), MARIAN, (*MARIAN, LANGUAGES)) if joint else (SEPARATE,)
    if set(manifest.tokenizer_files) not in [set(form) for form in forms]:
        expected_files = " or ".join(", ".join(form) for form in forms)
        problems.append(f"tokenizer files {sorted(manifest.tokenizer_files)}: expected {expected_files}")
    digests, contradictions = _digests([*(level.files for level in manifest.levels), manifest.tokenizer_files])
    problems += contradictions
    broken = set()
    for name, digest in sorted(digests.items()):
        if faults := _file_problems(path, name, digest):
            broken.add(name)
            problems += faults
    sizes = {name: (path / name).stat().st_size for name in digests.keys() - broken}
    for level in manifest.levels:
        graphs = sorted(name for name in level.files if name.endswith(GRAPH) and name not in broken)
        for graph in graphs:
            problems += _weight_problems(path, level, graph)
        if program_path(level.name) in level.files.keys() - broken:
            problems += _program_problems(path, level, manifest.architecture, sizes)
    return problems


def _digests(listed: Iterable[dict[str, str]]) -> tuple[dict[str, str], list[str]]:
    """The sha256 of every file that is listed anywhere, and the problems of those that are listed with two."""
    digests: dict[str, str] = {}
    problems = set()
    for files in listed:
        for name, digest in files.items():
            if (known := digests.setdefault(name, digest)) != digest:
                problems.add(f"{name} is listed with two digests, {known[:12]}… and {digest[:12]}…: one is wrong")
    return digests, sorted(problems)


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


def _weight_problems(root: Path, level: Level, graph: str) -> list[str]:
    """Weights that a graph reads and its level does not list. Without a digest, damage to them would not be noticed."""
    try:
        read = {tensor.location for tensor in GraphFile((root / graph).read_bytes()).stored()}
    except OSError as error:
        return [f"{graph} cannot be read: {error.strerror}"]
    except ValueError as error:
        return [f"{graph}: {error}"]
    problems = []
    for name in sorted(read - set(level.files)):
        missing = "" if (root / name).is_file() else ", and is missing"
        problems.append(f"level {level.name}: {graph} reads {name}, which is not listed{missing}")
    return problems


def _program_problems(root: Path, level: Level, arch: Architecture, sizes: Mapping[str, int]) -> list[str]:
    """What is wrong with a level's step program. sizes: of the files of all levels, as `file_problems` takes them."""
    try:
        program = read_program(root, level.name)
    except InvalidArtifactError as error:
        return error.problems
    problems = program_problems(program, arch) + file_problems(program, sizes)
    return [f"level {level.name}: {program_path(level.name)} {problem}" for problem in problems]


def _file_problems(root: Path, name: str, digest: str) -> list[str]:
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        return [f"{name}: path leaves the bundle"]
    try:
        if not (root / name).is_file():
            return [f"{name} is missing"]
        actual = sha256_file(root / name)
    except OSError as error:
        return [f"{name} cannot be read: {error.strerror}"]
    if actual == digest:
        return []
    changed = f"has sha256 {actual[:12]}…, the manifest says {digest[:12]}…: the file was changed or cut short"
    return [f"{name} {why(root / name, changed)}"]
