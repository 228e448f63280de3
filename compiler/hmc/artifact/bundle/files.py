"""Which files a bundle may hold, and replacing a bundle whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hmc.artifact.bundle.manifest import MANIFEST, TEMPORARY
from hmc.artifact.storage.files import replace_directory
from hmc.artifact.storage.formats import Format, check_replaceable
from hmc.artifact.tokenizer.files import EVERY


def _files(manifest: dict[str, Any]) -> Iterable[str]:
    """Files that a manifest lists. It may be of any version, and invalid."""
    levels = [level for level in manifest["levels"] if isinstance(level, dict)]
    listed = {name for level in levels if isinstance(level.get("files"), dict) for name in level["files"]}
    return listed | {TEMPORARY, *EVERY}


FORMAT = Format("a bundle", MANIFEST, lambda content: isinstance(content.get("levels"), list), _files)


@contextmanager
def replace_bundle(out: Path, inputs: Iterable[Path]) -> Iterator[Path]:
    """Yields an empty directory that takes `out`'s place when the block ends; on an error, `out` stays as it was.

    inputs: checkpoints and files that are read. Raises InvalidRequestError where `out` holds one of them, or files that
    do not belong to a bundle.
    """
    check_replaceable(out, FORMAT, inputs)
    with replace_directory(out, FORMAT) as folder:
        yield folder
