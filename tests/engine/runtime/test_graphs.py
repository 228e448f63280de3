"""Graphs whose files cannot be read, or are not those of the bundle any more."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hmc.artifact import read_manifest
from hmc.artifact.bundle.manifest import encoder_path
from hmc.artifact.errors import FailedPreconditionError
from hmc.engine.runtime import graphs
from hmc.engine.runtime.device import Device
from hmc.engine.runtime.graphs import Opener, check_unchanged

GRAPH = encoder_path("full")


@pytest.fixture
def opener(lively_bundle: Path) -> Opener:
    return Opener(lively_bundle, read_manifest(lively_bundle).level("full").files, Device("cpu"), threads=1)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.EMFILE, r"encoder\.onnx cannot be read: Too many open files\. .*`ulimit -n`"),
        (errno.EACCES, r"encoder\.onnx cannot be read: Permission denied\. Check its permissions"),
        (errno.ENOENT, r"encoder\.onnx has changed since this bundle was opened"),
        (errno.ENOTDIR, r"encoder\.onnx has changed since this bundle was opened"),
    ],
)
def test_a_file_that_cannot_be_read_is_not_called_changed(
    opener: Opener, monkeypatch: pytest.MonkeyPatch, number: int, message: str
) -> None:
    def failing(_: Path) -> bytes:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "read_bytes", failing)
    with pytest.raises(FailedPreconditionError, match=message):
        opener.open(GRAPH, spin_us=0)
    monkeypatch.setattr(graphs, "sha256_unless_known", failing)
    with pytest.raises(FailedPreconditionError, match=message):
        check_unchanged(opener.bundle, GRAPH, opener.files)
