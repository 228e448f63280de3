"""A level that is run by its step program, in place of ONNX Runtime's sessions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hmc.artifact.bundle.manifest import Level, Variant
from hmc.artifact.bundle.shortlist import Lexicon
from hmc.artifact.errors import InvalidArtifactError, InvalidRequestError
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.program.operations import program_path
from hmc.engine.native import library
from hmc.engine.native.level import MOST_THREADS, NativeLevel
from hmc.engine.reference import ReferenceLevel
from hmc.engine.runtime.device import Device
from hmc.engine.runtime.graphs import check_unchanged
from hmc.engine.runtime.sessions import LevelSessions
from hmc.engine.runtime.threads import cores
from hmc.engine.support import PRECISIONS_OF, Executor


class ProgramSessions(LevelSessions):
    """The level's step program. Nothing of ONNX Runtime is opened."""

    program: ReferenceLevel | NativeLevel
    threads: int = 1
    """That divide each step of a batch among them, in the native executor."""

    @classmethod
    def open_program(
        cls,
        bundle: Path,
        arch: Architecture,
        level: Level,
        digests: Mapping[str, str],
        executor: Executor,
        threads: int = 1,
    ) -> ProgramSessions:
        """Opens a level. digests: path within the bundle → sha256, of the files of all levels: a program may read
        weights of wider ones. threads: of each batch; 0: one for each physical core that this process may use.

        Raises InvalidRequestError where the executor cannot run it, InvalidArtifactError for files that cannot be read,
        and FailedPreconditionError for files that have changed since the bundle was validated.
        """
        if level.precision not in PRECISIONS_OF[executor]:
            raise InvalidRequestError(
                f"executor {executor}: level {level.name!r} is {level.precision}; it runs "
                f"{', '.join(PRECISIONS_OF[executor])}"
            )
        if program_path(level.name) not in level.files:
            raise InvalidRequestError(
                f"executor {executor}: level {level.name!r} has no step program; compile the bundle again"
            )
        native = library.best() if executor == "native" else None
        if executor == "native" and native is None:
            raise InvalidRequestError(
                "executor native: this installation has no library for it; build it with "
                "`python -m hmc.engine.native.build`, or choose executor onnxruntime"
            )
        for name in level.files:
            if not name.endswith(".onnx"):
                check_unchanged(bundle, name, digests)
        opened = cls(arch, level, Device("cpu"), None, scores_wanted=True)
        opened.threads = min(threads or cores(), MOST_THREADS)
        try:
            if native is None:
                opened.program = ReferenceLevel.open(bundle, level.name, arch)
            else:
                opened.program = NativeLevel.open(native, bundle, level.name, arch, listed=bool(level.shortlist))
        except OSError as error:
            raise InvalidArtifactError(
                f"level {level.name}", [f"{error.filename} cannot be read: {error.strerror}"], "Let this user read it."
            ) from error
        read = {place.file for place in opened.program.program.tensors.values()}
        for name in sorted(read - level.files.keys()):
            check_unchanged(bundle, name, digests)
        if isinstance(opened.program, NativeLevel):
            opened.weights = {f"{level.name} (native)": opened.program.bytes}
        else:
            opened.weights = {name: (bundle / name).stat().st_size for name in read}
        if level.shortlist:
            opened.lexicon = Lexicon.load(bundle / level.shortlist, arch)
        return opened

    @property
    def searches_inside(self) -> bool:
        """Whether the executor searches by itself."""
        return isinstance(self.program, NativeLevel)

    @property
    def any_patience(self) -> bool:
        """The executor counts ended hypotheses."""
        return True

    def has(self, variant: Variant) -> bool:
        """The program computes every variant."""
        del variant
        return True

    def decoder(self, variant: Variant | None = None) -> Any:
        """There is nothing to open."""
        del variant

    def release_memory(self) -> None:
        """Does nothing, because no memory is held that could be given back."""
