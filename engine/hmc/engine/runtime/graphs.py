"""Opens graphs of a bundle as ONNX Runtime sessions, after checking that their files are still those of the bundle.

Weights come from the cache of packed weights (CPU), from the one copy on the device, or from the bundle itself.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as errors

from hmc.artifact.bundle.external_data import GraphFile, StoredTensor
from hmc.artifact.bundle.manifest import FIX
from hmc.artifact.errors import FailedPreconditionError, InvalidArtifactError
from hmc.artifact.storage.files import sha256_unless_known
from hmc.engine.runtime.device import Device, cuda_options
from hmc.engine.runtime.memory.weights import SharedWeight, WeightKey, WeightStore, key_of
from hmc.engine.runtime.packed_weights import PackedWeights
from hmc.engine.support import CudaAttention

log = logging.getLogger(__name__)

EXTERNAL_BYTES = 1024
"""Tensors of at least this many bytes are stored outside of packed graphs, so that sessions can share them."""
OWN_MEMORY = "a level keeps its weights in memory of its own"
"""How log lines begin that say why a level does not share its weights."""
GRAPH_ERRORS = (
    errors.Fail,
    errors.InvalidArgument,
    errors.InvalidGraph,
    errors.InvalidProtobuf,
    errors.NotImplemented,
)
"""Errors that ONNX Runtime raises for a graph that it cannot use."""


@cache
def _share_working_memory() -> None:
    """Makes one arena for the intermediate results of all CPU sessions, in place of one arena each. Sessions that do
    not run at the same time then use the same memory."""
    memory = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    try:
        onnxruntime.create_and_register_allocator(memory, None)
    except GRAPH_ERRORS as error:  # the process has registered one already
        log.debug("the shared arena was registered by other code of this process: %s", error)


_warned: set[tuple[Path, str]] = set()
"""Caches, and what this process has said about them."""


def _warn_once(folder: Path, what: str, error: Exception) -> None:
    """Logs why levels do not share their weights: once for a cache, not for every graph."""
    if (folder, what) not in _warned:
        _warned.add((folder, what))
        log.warning("%s: %s: %s", OWN_MEMORY, what, error)


def check_unchanged(bundle: Path, name: str, digests: Mapping[str, str]) -> None:
    """Raises FailedPreconditionError unless `bundle / name` is the file that was there when the bundle was validated.

    digests: file → its sha256 at that time.
    """
    try:
        digest = sha256_unless_known(bundle / name)
    except OSError as error:
        raise unreadable_error(bundle, name, error) from error
    if digest != digests.get(name):
        raise changed_error(bundle, name)


def changed_error(bundle: Path, name: str) -> FailedPreconditionError:
    """Makes the error for a file of a bundle that has changed since the bundle was opened."""
    return FailedPreconditionError(
        f"{bundle}/{name} has changed since this bundle was opened: the file was changed, or another bundle was put in "
        "its place. Reload the bundle (`hmc admin reload`), or open it again"
    )


def unreadable_error(bundle: Path, name: str, error: OSError) -> FailedPreconditionError:
    """Makes the error for a file of a bundle that cannot be read: it has changed if it is gone."""
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
        return changed_error(bundle, name)
    return FailedPreconditionError(
        f"{bundle}/{name} cannot be read: {error.strerror}. Check its permissions and this process's limits, such as "
        "the number of open files (`ulimit -n`), and try again"
    )


def unusable_error(bundle: Path, name: str, error: Exception) -> InvalidArtifactError:
    """Makes the error for a graph that ONNX Runtime cannot use, or whose file is damaged."""
    return InvalidArtifactError(f"bundle {bundle}", [f"{name} cannot be loaded: {error}"], FIX)


@dataclass(frozen=True)
class OpenedGraph:
    """A session and the weights that it holds."""

    session: onnxruntime.InferenceSession
    weights: dict[str, int]
    """Weight file → bytes of it in this machine's memory. Sessions that name the same file share them."""
    device_weights: dict[str, int] = field(default_factory=dict)
    """Weight → bytes of it in the device's memory. Sessions that name the same weight share them."""


@dataclass(frozen=True)
class Opener:
    """Opens the graphs of one level."""

    bundle: Path
    files: Mapping[str, str]
    """Graph or weight file → its sha256 when the bundle was validated. Some graphs are opened much later."""
    device: Device
    threads: int
    """Threads of each session; 0: one for each physical core."""
    packed: PackedWeights | None = None
    """The cache of packed weights, for graphs on a CPU only. None: sessions keep their weights to themselves."""
    attention: CudaAttention = "plain"
    """How attention is computed on CUDA."""
    store: WeightStore | None = None
    """The weights on the device. None: sessions do not share weights, or by `packed`."""
    resident: dict[WeightKey, SharedWeight] = field(default_factory=dict)
    """The weights of this level on the device."""

    def load_weights(self, level: str) -> None:
        """Puts the weights of all graphs of the level on the device, also of graphs that are opened later.

        level: its name. Raises FailedPreconditionError if they do not fit there, or if a file has changed since the
        bundle was validated, and InvalidArtifactError if a file is damaged.
        """
        if self.store is None:
            return
        name = ""
        try:
            tensors: dict[tuple[str, int], StoredTensor] = {}
            for name in sorted(file for file in self.files if file.endswith(".onnx")):
                tensors |= {(t.location, t.raw.offset): t for t in self._checked_weights(self._read(name))}
            self.resident.update(self.store.load(self.bundle, tensors.values(), lambda file: self.files[file], level))
        except OSError as error:
            raise unreadable_error(self.bundle, str(error.filename), error) from error
        except ValueError as error:
            raise unusable_error(self.bundle, name, error) from error

    def open(self, name: str, *, spin_us: int, capture: bool = False) -> OpenedGraph:
        """Opens the graph at `bundle / name`.

        spin_us: microseconds for which its threads wait for work actively before they sleep. capture: on CUDA, the
        session records its runs, see `cuda_options`. Raises
        InvalidArtifactError if ONNX Runtime cannot use the graph, and FailedPreconditionError if a file has changed
        since the bundle was validated.
        """
        source = self._read(name)
        try:
            opened = self._open_packed(source, spin_us) if self.packed and self.device.kind == "cpu" else None
            if opened is not None:
                return opened
            stored = self._checked_weights(source)
            options = self._options(self.bundle.absolute(), spin_us)
            shared = self._shared(stored)
            # With a store the weights are on the device already; the few that are not are copied there while it opens.
            content = self._hold(options, {tensor.location for tensor in stored} if self.store is None else ())
            for weight, on_device in shared.items():
                options.add_initializer(weight, on_device.value)
            session = self._session(source, options, capture)
            del content  # until here ONNX Runtime reads it
            own = {f"{self.bundle}/{name}: {t.name}": t.raw.length for t in stored if t.name not in shared}
            shared_bytes = {weight.name: weight.size for weight in shared.values()}
            on_host = self.device.kind == "cpu"
            return OpenedGraph(session, own | shared_bytes if on_host else {}, {} if on_host else own | shared_bytes)
        except (*GRAPH_ERRORS, ValueError) as error:
            raise unusable_error(self.bundle, name, error) from error

    def _shared(self, stored: list[StoredTensor]) -> dict[str, SharedWeight]:
        """Those initializers of a graph that are on the device already."""
        resident_or_none = {t.name: self.resident.get(key_of(t, self.files[t.location])) for t in stored}
        return {name: weight for name, weight in resident_or_none.items() if weight is not None}

    def _read(self, name: str) -> bytes:
        try:
            source = (self.bundle / name).read_bytes()
        except OSError as error:
            raise unreadable_error(self.bundle, name, error) from error
        if hashlib.sha256(source).hexdigest() != self.files.get(name):
            raise changed_error(self.bundle, name)
        return source

    def _checked_weights(self, source: bytes) -> list[StoredTensor]:
        """The tensors that are stored outside of a graph.

        Raises FailedPreconditionError if one of their files has changed.
        """
        stored = GraphFile(source).stored()
        for name in sorted({tensor.location for tensor in stored}):
            check_unchanged(self.bundle, name, self.files)
        return stored

    def _hold(self, options: onnxruntime.SessionOptions, names: Collection[str]) -> list[bytes]:
        """Reads these weight files of the bundle into memory, for a session to take them from there.

        ONNX Runtime would map the files. They are not ours: a write to one would change translations, and a shorter one
        end the process. Returns their bytes, which must be kept until the session is made. Raises
        FailedPreconditionError if one has changed since the bundle was validated.
        """
        contents = {name: self._read(name) for name in sorted(names)}
        if contents:
            options.add_external_initializers_from_files_in_memory(
                list(contents), list(contents.values()), list(map(len, contents.values()))
            )
        return list(contents.values())

    def _open_packed(self, source: bytes, spin_us: int) -> OpenedGraph | None:
        """Opens the graph with packed weights. Returns None, and logs the reason, if the cache cannot be used.

        ONNX Runtime raises the same error for a full disk as for a graph that it cannot use. The caller then opens the
        graph without the cache, which fails again only if the graph is at fault.
        """
        assert self.packed is not None
        try:
            packed = self.packed.graph(source, lambda path: self._pack(source, path))
        except (OSError, *GRAPH_ERRORS) as error:
            _warn_once(self.packed.folder, "packed weights cannot be read or written", error)
            return None
        options = self._options(packed.folder, spin_us)
        # The graph was optimised when it was packed.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            return OpenedGraph(self._session(packed.content, options), packed.weights)
        except GRAPH_ERRORS as error:
            _warn_once(self.packed.folder, "packed weights cannot be mapped", error)
            return None

    def _pack(self, source: bytes, path: Path) -> None:
        """Saves the optimised graph with packed weights to `path`. See `Pack`."""
        stored = self._checked_weights(source)
        options = self._options(self.bundle.absolute(), spin_us=0)
        content = self._hold(options, {tensor.location for tensor in stored})
        options.optimized_model_filepath = str(path)
        for key, value in (
            ("optimized_model_external_initializers_file_name", f"{path.stem}.data"),
            ("optimized_model_external_initializers_min_size_in_bytes", str(EXTERNAL_BYTES)),
            ("save_external_prepacked_constant_initializers", "1"),
        ):
            options.add_session_config_entry(f"session.{key}", value)
        self._session(source, options)
        del content  # until here ONNX Runtime reads it

    def _options(self, weights: Path, spin_us: int) -> onnxruntime.SessionOptions:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = self.threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spin_us else "0")
        if spin_us:
            options.add_session_config_entry("session.intra_op.spin_duration_us", str(spin_us))
        options.enable_mem_pattern = False  # it would keep a plan for every shape that occurs
        if self.device.kind == "cpu":
            _share_working_memory()
            options.add_session_config_entry("session.use_env_allocators", "1")
        # Graphs are passed as bytes; paths of their external weights are relative to this folder.
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(weights))
        return options

    def _session(
        self, graph: bytes, options: onnxruntime.SessionOptions, capture: bool = False
    ) -> onnxruntime.InferenceSession:
        if self.device.kind == "cpu":
            # On a CPU the fused operator is many times slower than the two operators that the compiler writes.
            disabled = ["SkipLayerNormFusion"]
            providers = ["CPUExecutionProvider"]
            return onnxruntime.InferenceSession(graph, options, providers=providers, disabled_optimizers=disabled)
        cuda = cuda_options(self.device, self.attention, capture=capture)
        # The CPU provider computes shapes. Without fallback, a graph that CUDA refuses is an error.
        return onnxruntime.InferenceSession(
            graph, options, providers=[("CUDAExecutionProvider", cuda), "CPUExecutionProvider"], enable_fallback=0
        )
