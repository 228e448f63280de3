"""What a build decides: whether HMC comes with the GPU build of ONNX Runtime, or, with HEADMASK_RUNTIME=cpu, with the
small one for CPUs. Its version then ends in +cpu, as one environment can hold only one of the two.

It also builds the native executor for this machine, with the C compiler that is there, else with the package `ziglang`;
or, with HEADMASK_MACHINES=x86_64,aarch64, for all machines in one wheel.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

RUNTIME, VERSIONS = "HEADMASK_RUNTIME", ">=1.31,<2"
ON_GPU = "sys_platform == 'linux' and platform_machine == 'x86_64'"
"""Where the GPU build is published. It also holds the CPU provider."""
ELSEWHERE = "sys_platform != 'linux' or platform_machine != 'x86_64'"
RUNTIMES = {
    "gpu": [f"onnxruntime-gpu{VERSIONS}; {ON_GPU}", f"onnxruntime{VERSIONS}; {ELSEWHERE}"],
    "cpu": [f"onnxruntime{VERSIONS}"],
}
VERSION = re.compile(r'^VERSION = "(.+)"$', re.MULTILINE)


def asked() -> str:
    """The runtime that is asked for. Raises ValueError for one that there is not."""
    runtime = os.environ.get(RUNTIME) or "gpu"
    if runtime not in RUNTIMES:
        raise ValueError(f"{RUNTIME}={runtime}: choose {' or '.join(RUNTIMES)}")
    return runtime


class MetadataHook(MetadataHookInterface):
    """Sets the fields that pyproject.toml calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Raises ValueError for a runtime that there is not."""
        runtime = asked()
        found = VERSION.search((Path(self.root) / self.config["version-from"]).read_text(encoding="utf-8"))
        assert found is not None
        metadata["version"] = found[1] + ("+cpu" if runtime == "cpu" else "")
        metadata["dependencies"] = [*self.config["dependencies"], *RUNTIMES[runtime]]


class BuildHook(BuildHookInterface[Any]):
    """Refuses to build for another runtime than that of the metadata: a source distribution keeps its own. Builds the
    native executor, except for a source distribution."""

    def dependencies(self) -> list[str]:
        """A compiler, where this machine has none. Raises ValueError for machines that there are not."""
        return [] if self.target_name == "sdist" or self._native().compiler() else ["ziglang>=0.15,<0.16"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Raises ValueError. Where the native executor cannot be built for this machine, a line says so, and HMC works
        without it."""
        runtime = "cpu" if self.metadata.version.endswith("+cpu") else "gpu"
        if asked() != runtime:
            raise ValueError(f"{RUNTIME}={asked()}: this source distribution is for {runtime}; build from a checkout")
        if self.target_name == "sdist":
            return
        native = self._native()
        command = native.compiler()
        if command is None and native.machines():
            raise ValueError(f"{native.MACHINES} needs a compiler for all of them: pip install 'ziglang>=0.15,<0.16'")
        if command is None:
            self.app.display_warning(
                "no C compiler: HMC is built without its native executor, and ONNX Runtime runs all"
            )
            return
        if native.machines():
            for path in native.build_all(Path(self.root) / "build" / "native", command):
                build_data["force_include"][str(path)] = f"hmc/engine/native/built/{path.name}"
            return
        try:
            built = native.build_all(native.HERE / "built", command)
        except (OSError, subprocess.CalledProcessError) as error:
            self.app.display_warning(f"HMC is built without its native executor, and ONNX Runtime runs all: {error}")
            return
        build_data["artifacts"] += [str(path.relative_to(self.root)) for path in built]

    def _native(self) -> Any:
        """The module that builds the native executor; it imports nothing of HMC."""
        path = Path(self.root) / "engine" / "hmc" / "engine" / "native" / "build.py"
        spec = importlib.util.spec_from_file_location("native_build", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
