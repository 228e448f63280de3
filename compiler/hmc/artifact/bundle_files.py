"""Which files a bundle may hold, and replacing one whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hmc.artifact.bundle import MANIFEST, TEMPORARY, WEIGHTS
from hmc.artifact.files import replace_directory
from hmc.artifact.formats import Format, check_replaceable
from hmc.artifact.tokenizer_files import EVERY

RESERVED = frozenset((MANIFEST, WEIGHTS, *EVERY))
"""Names in a bundle that no level can have."""


def _files(manifest: dict[str, Any]) -> Iterable[str]:
    """What a manifest lists; of any version, and of one that `read_manifest` would refuse."""
    levels = [level for level in manifest["levels"] if isinstance(level, dict)]
    listed = {name for level in levels if isinstance(level.get("files"), dict) for name in level["files"]}
    return listed | {TEMPORARY, *EVERY}


FORMAT = Format("a bundle", MANIFEST, lambda content: isinstance(content.get("levels"), list), _files)


@contextmanager
def replace_bundle(out: Path, inputs: Iterable[Path]) -> Iterator[Path]:
    """`replace_directory` for a bundle; refused where one of `inputs`, checkpoints and files that are read, is in it.

    Raises InvalidRequestError.
    """
    check_replaceable(out, FORMAT, inputs)
    with replace_directory(out, FORMAT) as folder:
        yield folder
