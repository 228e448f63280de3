"""The pruning compiler: head layouts → slim weights → ONNX graphs → a checked bundle (NumPy, onnx-ir, ONNX Runtime)."""
