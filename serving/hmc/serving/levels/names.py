"""Names of models: what they may be, and how a command line gives them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from hmc.artifact.bundle.manifest import Manifest, read_manifest
from hmc.artifact.errors import HmcError, InvalidArtifactError
from hmc.serving.requests.selectors import MAX_NAME

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
NAME_RULE = f"letters, digits, `.`, `_` and `-`, first a letter or digit, at most {MAX_NAME} characters"


def name_of(manifest: Manifest) -> str:
    """The name of a model without a given name: its languages, such as `en-de`."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", f"{manifest.source_language}-{manifest.target_language}")[:MAX_NAME]
    return name if NAME.fullmatch(name) else "model"


def parse_models(arguments: Sequence[str]) -> dict[str, Path]:
    """Reads `NAME=BUNDLE` or `BUNDLE`: the name of each model → the folder of its bundle, in their order.

    A folder with `=` in its name is written with a path, as in `./a=b`. Raises InvalidArtifactError with all problems:
    names that are not valid or not unique, and folders that are missing or hold no bundle. For one bundle alone without
    a name, the name is empty, and its folder is not read here; loading it reports what is wrong.
    """
    given = [_split(argument) for argument in arguments]
    if len(given) == 1 and given[0][0] is None:
        return {"": Path(given[0][1])}
    problems = []
    named = list[tuple[str, Path]]()
    for argument, (name, folder) in zip(arguments, given, strict=True):
        if not folder:
            problems.append(f"{argument!r} names no bundle: write NAME=BUNDLE")
            continue
        if name is not None and (not NAME.fullmatch(name) or len(name) > MAX_NAME):
            problems.append(f"{argument!r}: a model's name has {NAME_RULE}")
        path = Path(folder)
        try:
            manifest = read_manifest(path)
        except HmcError as error:
            problems += [f"{path}: {problem}" for problem in getattr(error, "problems", [str(error)])]
            manifest = None
        if name or manifest:
            named.append((name or name_of(manifest), path) if manifest else (str(name), path))
    for name, uses in Counter(name for name, _ in named).items():
        if uses > 1:
            bundles = " and ".join(str(path) for other, path in named if other == name)
            problems.append(f"{name!r} is the name of {bundles}: give each another one, as in NAME=BUNDLE")
    if problems:
        raise InvalidArtifactError("the models to serve", problems, "Name each bundle once, by the folder it is in.")
    return dict(named)


def _split(argument: str) -> tuple[str | None, str]:
    name, equals, folder = argument.partition("=")
    return (name, folder) if equals and "/" not in name else (None, argument)
