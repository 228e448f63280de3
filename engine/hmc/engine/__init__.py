"""Runs step programs: token ids in, token ids out. No service, no PyTorch, no onnx."""
