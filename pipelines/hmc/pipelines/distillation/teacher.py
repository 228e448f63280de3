"""The teacher: a checkpoint, or a MarianMT directory, compiled once for the fast engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from hmc.artifact.bundle.manifest import MANIFEST
from hmc.artifact.checkpoint.checkpoint import FORMAT, checkpoint_digest, is_marian, save_checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.precisions import PRECISIONS, Precision
from hmc.compiler.bundle.requests import LevelRequest
from hmc.compiler.bundle.writer import compile_bundle
from hmc.engine.runtime.device import cuda_available
from hmc.engine.runtime.threads import cores
from hmc.pipelines.distillation.settings import DistillSettings
from hmc.pipelines.importing import import_model
from hmc.pipelines.progress import Step, silent
from hmc.pipelines.window import worker_rows
from hmc.serving.translator import Translator


def as_checkpoint(path: Path, folder: Path) -> Path:
    """Returns `path` if it is no MarianMT directory; else imports it into `folder`, and returns that.

    Raises InvalidArtifactError for a MarianMT model that cannot be imported, with every reason, and InvalidRequestError
    if `folder` holds a checkpoint of another model.
    """
    if not is_marian(path):
        return path
    imported = import_model(path)
    if FORMAT.is_at(folder):
        with TemporaryDirectory() as temporary:
            save_checkpoint(imported, Path(temporary) / "checkpoint")
            same = checkpoint_digest(Path(temporary) / "checkpoint") == checkpoint_digest(folder)
        if not same:
            raise InvalidRequestError(
                f"{folder} belongs to another model than {path}; choose another folder, or delete that one's "
                "parent to begin anew"
            )
        return folder
    save_checkpoint(imported, folder)
    return folder


def precision_of(settings: DistillSettings) -> Precision:
    """Returns the precision of the teacher. Raises InvalidRequestError if the device cannot run it."""
    cuda = settings.device.startswith("cuda") or (settings.device == "auto" and cuda_available())
    if settings.precision == "auto":
        return "fp16" if cuda else "int8"
    made_for = PRECISIONS[settings.precision].device
    if settings.device != "auto" and made_for != settings.device.partition(":")[0]:
        raise InvalidRequestError(
            f"precision {settings.precision}: it is for {made_for}, and not for {settings.device}"
        )
    return settings.precision


def compile_teacher(
    checkpoint: Path, folder: Path, precision: Precision, sentences: Sequence[str], step: Step = silent
) -> Path:
    """Compiles the checkpoint into the bundle `folder`, unless it is there; returns `folder`.

    sentences: source text, for the ranges of int8. A bundle is written whole or not at all, so an existing bundle is
    complete. Raises as `compile_bundle`.
    """
    if not (folder / MANIFEST).is_file():
        compile_bundle(
            [LevelRequest(checkpoint)], folder, precisions=(precision,), calibration=sentences, progress=step
        )
    return folder


def open_teacher(bundle: Path, settings: DistillSettings) -> Translator:
    """Loads the bundle's only level, on all cores of a CPU. Close it. Raises as `Translator`."""
    on_cpu = PRECISIONS[precision_of(settings)].device == "cpu"
    workers = (settings.workers or cores()) if on_cpu else 1
    rows = worker_rows(settings.beam) * (workers if on_cpu else 4)
    threads = settings.threads or (1 if on_cpu else 0)
    return Translator(bundle, device=settings.device, threads=threads, workers=workers, max_rows=rows, cache="none")
