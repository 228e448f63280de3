"""Directories that CTranslate2's own converter writes, and a writer of model.bin for files that it never would."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.artifact.npz.marian_writer import write_release

from hmc.artifact.ctranslate2.binary import TYPES, read_binary

NUMBERS = {name: number for number, (name, _) in enumerate(TYPES)}


def convert(release: Path, out: Path, quantization: str | None = None) -> Path:
    """Converts a Marian release with CTranslate2's own converter, with the SentencePiece models beside it."""
    import ctranslate2  # type: ignore[import-untyped]

    vocabularies = sorted(map(str, release.glob("*.vocab.yml")))
    converter = ctranslate2.converters.MarianConverter(str(release / "opus.npz"), vocabularies)
    converter.convert(str(out), quantization=quantization)
    for name in ("source.spm", "target.spm"):
        shutil.copy(release / name, out / name)
    return out


def release_and_converted(folder: Path, quantization: str | None = None, **fields: Any) -> tuple[Path, Path]:
    """A Marian release of random weights, and what CTranslate2 makes of it. fields: as in `write_release`."""
    write_release(folder / "opus", seed=5, **fields)
    return folder / "opus", convert(folder / "opus", folder / "ct2", quantization)


def string(text: str) -> bytes:
    return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"


def array(name: str, value: np.ndarray, kind: str | None = None) -> bytes:
    """An array of the file. kind: of its values, if NumPy does not know it."""
    raw = value.tobytes()
    sizes = b"".join(struct.pack("<I", size) for size in value.shape)
    number = NUMBERS[kind or str(value.dtype)]
    return string(name) + struct.pack("<B", value.ndim) + sizes + struct.pack("<BI", number, len(raw)) + raw


def binary(
    arrays: Sequence[bytes], aliases: Sequence[tuple[str, str]] = (), spec: str = "TransformerSpec", revision: int = 7
) -> bytes:
    """A whole file."""
    head = struct.pack("<I", 6) + string(spec) + struct.pack("<II", revision, len(arrays))
    named = b"".join(string(alias) + string(name) for alias, name in aliases)
    return head + b"".join(arrays) + struct.pack("<I", len(aliases)) + named


def rewrite(folder: Path, changes: Mapping[str, np.ndarray | None], **head: Any) -> None:
    """Writes model.bin again with other arrays; None leaves one out. Aliases become arrays of their own."""
    found = read_binary(folder / "model.bin").variables
    arrays = {name: variable.stored.copy() for name, variable in found.items()}
    kept = {name: value for name, value in {**arrays, **changes}.items() if value is not None}
    (folder / "model.bin").write_bytes(binary([array(name, value) for name, value in kept.items()], **head))
