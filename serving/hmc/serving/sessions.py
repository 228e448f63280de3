"""ONNX Runtime sessions of a level: opening them on the device asked for, and running the encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as errors

from hmc.artifact.architecture import Architecture
from hmc.artifact.bundle import FIX, Level, Variant, decoder_path, encoder_path
from hmc.artifact.errors import DeviceUnavailableError, InvalidArtifactError, InvalidRequestError

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Device:
    """Where a level runs."""

    kind: str
    index: int = 0

    def __str__(self) -> str:
        return "cpu" if self.kind == "cpu" else f"{self.kind}:{self.index}"


def resolve_device(name: str, level: Level) -> Device:
    """`auto`, `cpu`, `cuda` or `cuda:N` → a device that is there and can run the level.

    auto takes cuda for fp16 levels when it is there. Raises DeviceUnavailableError, InvalidRequestError.
    """
    kind, _, index = name.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (index and not (kind == "cuda" and index.isdecimal())):
        raise InvalidRequestError(f"device {name!r}: choose auto, cpu, cuda or cuda:N")
    on_device = level.precision == "fp16"
    if kind == "cpu" or (kind == "auto" and not on_device):
        if on_device:
            raise DeviceUnavailableError(
                f"level {level.name!r} is fp16, which is for cuda; on cpu choose an fp32 or int8 level "
                "(`hmc levels --bundle BUNDLE` lists them)"
            )
        return Device("cpu")
    if not cuda_available():
        raise DeviceUnavailableError(
            f"level {level.name!r} on {name}: ONNX Runtime finds no CUDA device here; install the NVIDIA driver and "
            "the CUDA libraries onnxruntime-gpu names, or use --device cpu with an fp32 or int8 level"
        )
    if not on_device:
        raise InvalidRequestError(
            f"level {level.name!r} is {level.precision}, which is for cpu; compile it with --precision fp16 "
            "to serve it on cuda"
        )
    return Device("cuda", int(index or 0))


def cuda_available() -> bool:
    """Whether ONNX Runtime can really open a session on a CUDA device."""
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        return False
    try:
        onnxruntime.preload_dlls()
        onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(1, np.float32), "cuda", 0)
    except Exception:  # noqa: BLE001 - ONNX Runtime raises its own types; whatever they are, there is no CUDA
        return False
    return True


@dataclass
class LevelSessions:
    """The sessions of a level. A level without open cross heads has an encoder with no outputs: it is not opened.

    The decoder's variants are opened when they are first needed.
    """

    bundle: Path
    arch: Architecture
    level: Level
    device: Device
    threads: int
    encoder: onnxruntime.InferenceSession | None
    decoders: dict[Variant | None, onnxruntime.InferenceSession]

    @classmethod
    def open(cls, bundle: Path, arch: Architecture, level: Level, device: Device, threads: int) -> LevelSessions:
        """Loads a level's graphs; weights are found in the bundle. threads 0: one per physical core."""
        encoder = (
            _open(bundle, encoder_path(level.name), device, threads, spin=False) if any(level.layout.cross) else None
        )
        opened = cls(bundle, arch, level, device, threads, encoder, {})
        opened.decoder()
        return opened

    def decoder(self, variant: Variant | None = None) -> onnxruntime.InferenceSession:
        """The decoder of this variant, opened if it was not. Raises InvalidArtifactError."""
        if variant not in self.decoders:
            name = decoder_path(self.level.name, variant)
            self.decoders[variant] = _open(self.bundle, name, self.device, self.threads, spin=True)
        return self.decoders[variant]

    def has(self, variant: Variant) -> bool:
        """Whether the bundle holds this variant of the level's decoder; those compiled before it existed do not."""
        return variant in self.decoders or decoder_path(self.level.name, variant) in self.level.files

    @property
    def scores_wanted(self) -> bool:
        """Whether the decoder tells the score of a wanted token; those compiled before it did do not."""
        return any(i.name == "wanted" for i in self.decoder().get_inputs())

    def encode(self, sources: Sequence[Sequence[int]]) -> tuple[Arrays, npt.NDArray[np.int32]]:
        """Sources (ids with EOS) → cross keys and values by name, each `[B, H_l, S, D]`, and lengths `[B]`."""
        lengths = np.array([len(s) for s in sources], np.int32)
        if self.encoder is None:
            return {}, lengths
        source = np.full((len(sources), int(lengths.max())), self.arch.pad_id, np.int32)
        for row, ids in enumerate(sources):
            source[row, : len(ids)] = ids
        names = [o.name for o in self.encoder.get_outputs()]
        values = self.encoder.run(names, {"source": source, "source_lengths": lengths})
        return dict(zip(names, values, strict=True)), lengths


_GRAPH_ERRORS = (
    errors.Fail,
    errors.InvalidArgument,
    errors.InvalidGraph,
    errors.InvalidProtobuf,
    errors.NotImplemented,
)
"""What ONNX Runtime raises for a graph it cannot use."""


def _open(bundle: Path, name: str, device: Device, threads: int, *, spin: bool) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spin else "0")
    # Graphs name their weights relative to the bundle, and are passed as bytes so that this folder applies.
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(bundle.absolute()))
    # On a CPU the fused operator is many times slower than the two that graphs are written with (see the compiler).
    left_out = ["SkipLayerNormFusion"] if device.kind == "cpu" else []
    providers: list[Any] = ["CPUExecutionProvider"]
    if device.kind == "cuda":
        providers.insert(0, ("CUDAExecutionProvider", {"device_id": device.index}))
    try:
        return onnxruntime.InferenceSession(
            (bundle / name).read_bytes(), options, providers=providers, disabled_optimizers=left_out
        )
    except _GRAPH_ERRORS as error:
        raise InvalidArtifactError(f"bundle {bundle}", [f"{name} cannot be loaded: {error}"], FIX) from error
