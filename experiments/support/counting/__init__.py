"""Counting what ONNX Runtime asks of CUDA, over stand-in libraries that compute nothing: no GPU is needed."""
