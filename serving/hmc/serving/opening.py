"""An ONNX Runtime session for a graph of a bundle: with packed weights from the cache, or straight from the bundle."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as errors

from hmc.artifact.bundle import FIX
from hmc.artifact.errors import FailedPreconditionError, InvalidArtifactError
from hmc.artifact.files import sha256_unless_known
from hmc.serving.external_data import GraphFile, StoredTensor
from hmc.serving.packed_weights import PackedWeights

log = logging.getLogger(__name__)

EXTERNAL_BYTES = 1024
"""Tensors of at least this size are kept outside of packed graphs, to be shared."""
GRAPH_ERRORS = (
    errors.Fail,
    errors.InvalidArgument,
    errors.InvalidGraph,
    errors.InvalidProtobuf,
    errors.NotImplemented,
)
"""What ONNX Runtime raises for a graph it cannot use."""


@cache
def _share_working_memory() -> None:
    """One arena for the intermediate results of every session on a CPU, in place of one each: levels that take turns
    use the same memory."""
    place = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    try:
        onnxruntime.create_and_register_allocator(place, None)
    except GRAPH_ERRORS as error:  # the process has one already
        log.debug("the arena for working memory is another's: %s", error)


def check_unchanged(bundle: Path, name: str, digests: Mapping[str, str]) -> None:
    """Raises FailedPreconditionError unless the file `bundle / name` has the sha256 that it had when the bundle was
    checked."""
    try:
        digest = sha256_unless_known(bundle / name)
    except OSError as error:
        raise changed(bundle, name) from error
    if digest != digests.get(name):
        raise changed(bundle, name)


def changed(bundle: Path, name: str) -> FailedPreconditionError:
    """The error for a file of a bundle that is not what it was."""
    return FailedPreconditionError(
        f"{bundle}/{name} is not the file that it was when this bundle was opened: it was changed, or another bundle "
        "has taken its place. Reload it (`hmc admin reload`), or open it anew"
    )


@dataclass(frozen=True)
class OpenedGraph:
    """A session, and what it holds of weights."""

    session: onnxruntime.InferenceSession
    weights: dict[str, int]
    """Weight file → bytes of it in memory; sessions that name the same file share them."""


@dataclass(frozen=True)
class Opener:
    """How the graphs of a level are opened."""

    bundle: Path
    files: Mapping[str, str]
    """Graph or weight file → its sha256 when the bundle was checked. Some graphs are opened long after."""
    cuda: int | None
    """The device's index; None: the CPU."""
    threads: int
    """0: one per physical core."""
    packed: PackedWeights | None = None
    """Only for graphs on a CPU."""

    def open(self, name: str, *, spin_us: int) -> OpenedGraph:
        """Opens the graph at `bundle / name`. spin_us: microseconds that its threads wait for work
        by spinning before they sleep.

        Raises InvalidArtifactError for a graph that ONNX Runtime cannot use, FailedPreconditionError for one that is
        not what it was when the bundle was checked.
        """
        source = self._read(name)
        try:
            opened = self._open_packed(source, spin_us) if self.packed and self.cuda is None else None
            if opened is not None:
                return opened
            stored = self._checked_weights(source)
            session = self._session(source, self._options(self.bundle.absolute(), spin_us))
            held = {f"{self.bundle}/{name}: {t.name}": t.raw.length for t in stored}
            return OpenedGraph(session, held)
        except (*GRAPH_ERRORS, ValueError) as error:
            raise InvalidArtifactError(f"bundle {self.bundle}", [f"{name} cannot be loaded: {error}"], FIX) from error

    def _read(self, name: str) -> bytes:
        try:
            source = (self.bundle / name).read_bytes()
        except OSError as error:
            raise changed(self.bundle, name) from error
        if hashlib.sha256(source).hexdigest() != self.files.get(name):
            raise changed(self.bundle, name)
        return source

    def _checked_weights(self, source: bytes) -> list[StoredTensor]:
        """The tensors that lie outside of a graph, once the files that hold them are known to be what they were."""
        stored = GraphFile(source).stored()
        for name in sorted({tensor.location for tensor in stored}):
            check_unchanged(self.bundle, name, self.files)
        return stored

    def _open_packed(self, source: bytes, spin_us: int) -> OpenedGraph | None:
        """None, and a line in the log, where files cannot be kept or mapped: the graph then has its weights to itself.

        ONNX Runtime says of a full disk what it says of a graph that it cannot use: opening it unpacked tells which.
        """
        assert self.packed is not None
        try:
            packed = self.packed.graph(source, lambda path: self._pack(source, path))
        except (OSError, *GRAPH_ERRORS) as error:
            log.warning("levels do not share weights: cannot keep packed ones: %s", error)
            return None
        options = self._options(packed.folder, spin_us)
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # it has been optimised
        try:
            return OpenedGraph(self._session(packed.content, options), packed.weights)
        except GRAPH_ERRORS as error:
            log.warning("levels do not share weights: cannot map packed ones: %s", error)
            return None

    def _pack(self, source: bytes, path: Path) -> None:
        """Saves the graph as it is run, with its weights packed."""
        self._checked_weights(source)
        options = self._options(self.bundle.absolute(), spin_us=0)
        options.optimized_model_filepath = str(path)
        for key, value in (
            ("optimized_model_external_initializers_file_name", f"{path.stem}.data"),
            ("optimized_model_external_initializers_min_size_in_bytes", str(EXTERNAL_BYTES)),
            ("save_external_prepacked_constant_initializers", "1"),
        ):
            options.add_session_config_entry(f"session.{key}", value)
        self._session(source, options)

    def _options(self, weights: Path, spin_us: int) -> onnxruntime.SessionOptions:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = self.threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spin_us else "0")
        if spin_us:
            options.add_session_config_entry("session.intra_op.spin_duration_us", str(spin_us))
        if self.cuda is None:
            _share_working_memory()
            options.add_session_config_entry("session.use_env_allocators", "1")
            options.enable_mem_pattern = False  # it keeps a plan for every shape that it ever sees
        # Graphs are passed as bytes, and this is the folder that their external weights are relative to.
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(weights))
        return options

    def _session(self, graph: bytes, options: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
        if self.cuda is None:
            # The fused operator is many times slower than the two that graphs are written with (see the compiler).
            left_out, providers = ["SkipLayerNormFusion"], ["CPUExecutionProvider"]
            return onnxruntime.InferenceSession(graph, options, providers=providers, disabled_optimizers=left_out)
        cuda = {"device_id": self.cuda, "arena_extend_strategy": "kSameAsRequested"}
        # Shapes are worked out on the CPU. Without fallback: what CUDA refuses is an error.
        return onnxruntime.InferenceSession(
            graph, options, providers=[("CUDAExecutionProvider", cuda), "CPUExecutionProvider"], enable_fallback=0
        )
