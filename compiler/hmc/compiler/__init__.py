"""The pruning compiler: head layouts → slim weights → ONNX graphs → a checked bundle (NumPy, onnx-ir, ONNX Runtime)."""

import hmc.artifact  # noqa: F401 - before ONNX Runtime
