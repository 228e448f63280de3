"""What a build decides: whether HMC comes with the GPU build of ONNX Runtime, or, with HEADMASK_RUNTIME=cpu, with the
small one for CPUs. Its version then ends in +cpu, as one environment can hold only one of the two."""

from __future__ import annotations

import os
import re
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
    """Refuses to build for another runtime than that of the metadata: a source distribution keeps its own."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Raises ValueError."""
        runtime = "cpu" if self.metadata.version.endswith("+cpu") else "gpu"
        if asked() != runtime:
            raise ValueError(f"{RUNTIME}={asked()}: this source distribution is for {runtime}; build from a checkout")
