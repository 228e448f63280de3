"""The pruning compiler: head layouts → slim weights → ONNX graphs → a checked bundle (NumPy, onnx-ir, ONNX Runtime).

`compile_bundle` does all of it:

    requests = [LevelRequest(Path("checkpoint"), heads) for heads in (144, 72)]
    compile_bundle(requests, Path("bundle"), precisions=("fp32", "int8"), calibration=sentences)

Names are imported when they are first used, so that `import hmc.compiler` loads neither onnx nor ONNX Runtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import hmc.artifact  # noqa: F401 - switches off the telemetry of ONNX Runtime, before any module imports it
from hmc.artifact.lazy import lazy_names

if TYPE_CHECKING:
    from hmc.compiler.bundle.builder import BundleBuilder as BundleBuilder
    from hmc.compiler.bundle.requests import LevelRequest as LevelRequest
    from hmc.compiler.bundle.requests import read_calibration as read_calibration
    from hmc.compiler.bundle.writer import compile_bundle as compile_bundle
    from hmc.compiler.bundle.writer import progress_steps as progress_steps
    from hmc.compiler.checks.parity import ParityError as ParityError
    from hmc.compiler.checks.runs import BrokenGraphError as BrokenGraphError
    from hmc.compiler.lexicon import ShortlistText as ShortlistText
    from hmc.compiler.weights import Ranking as Ranking
    from hmc.compiler.weights import Target as Target

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "hmc.compiler.bundle.builder": ("BundleBuilder",),
        "hmc.compiler.bundle.requests": ("LevelRequest", "read_calibration"),
        "hmc.compiler.bundle.writer": ("compile_bundle", "progress_steps"),
        "hmc.compiler.checks.parity": ("ParityError",),
        "hmc.compiler.checks.runs": ("BrokenGraphError",),
        "hmc.compiler.lexicon": ("ShortlistText",),
        "hmc.compiler.weights": ("Ranking", "Target"),
    },
)
