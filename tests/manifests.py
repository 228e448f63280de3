"""Changing the manifest of a bundle, with a valid digest."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hmc.artifact.bundle.manifest import MANIFEST, manifest_digest


@contextmanager
def changed_manifest(bundle: Path) -> Iterator[dict[str, Any]]:
    """The manifest as JSON, to be changed in the block. It is then written with a new digest."""
    raw = json.loads((bundle / MANIFEST).read_text())
    yield raw
    raw["digest"] = manifest_digest(raw)
    (bundle / MANIFEST).write_text(json.dumps(raw))
