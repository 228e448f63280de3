"""A level that the reference executor runs, in place of ONNX Runtime's sessions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hmc.artifact.bundle.manifest import Level, Variant
from hmc.artifact.bundle.shortlist import Lexicon
from hmc.artifact.errors import InvalidArtifactError, InvalidRequestError
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.program.operations import program_path
from hmc.engine.reference import ReferenceLevel
from hmc.engine.support import PRECISIONS_OF
from hmc.serving.runtime.device import Device
from hmc.serving.runtime.graphs import check_unchanged
from hmc.serving.runtime.sessions import LevelSessions


class ReferenceSessions(LevelSessions):
    """The level's step program. Nothing of ONNX Runtime is opened."""

    program: ReferenceLevel

    @classmethod
    def open_program(
        cls, bundle: Path, arch: Architecture, level: Level, digests: Mapping[str, str]
    ) -> ReferenceSessions:
        """Opens a level. digests: path within the bundle → sha256, of the files of all levels: a program may read
        weights of wider ones.

        Raises InvalidRequestError where the executor cannot run it, InvalidArtifactError for files that cannot be read,
        and FailedPreconditionError for files that have changed since the bundle was validated.
        """
        if level.precision not in PRECISIONS_OF["reference"]:
            raise InvalidRequestError(
                f"executor reference: level {level.name!r} is {level.precision}; it runs "
                f"{', '.join(PRECISIONS_OF['reference'])}"
            )
        if program_path(level.name) not in level.files:
            raise InvalidRequestError(
                f"executor reference: level {level.name!r} has no step program; compile the bundle again"
            )
        for name in level.files:
            if not name.endswith(".onnx"):
                check_unchanged(bundle, name, digests)
        opened = cls(arch, level, Device("cpu"), None, scores_wanted=True)
        try:
            opened.program = ReferenceLevel.open(bundle, level.name, arch)
        except OSError as error:
            raise InvalidArtifactError(
                f"level {level.name}", [f"{error.filename} cannot be read: {error.strerror}"], "Let this user read it."
            ) from error
        read = {place.file for place in opened.program.program.tensors.values()}
        for name in sorted(read - level.files.keys()):
            check_unchanged(bundle, name, digests)
        opened.weights = {name: (bundle / name).stat().st_size for name in read}
        if level.shortlist:
            opened.lexicon = Lexicon.load(bundle / level.shortlist, arch)
        return opened

    @property
    def device_form(self) -> bool:
        """The search is on the host."""
        return False

    def has(self, variant: Variant) -> bool:
        """The program computes what every variant does."""
        del variant
        return True

    def decoder(self, variant: Variant | None = None) -> Any:
        """There is nothing to open."""
        del variant

    def release_memory(self) -> None:
        """Nothing is held that could be given back."""
