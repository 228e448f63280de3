"""ONNX Runtime and the machine: devices, sessions and their graphs, packed weights, threads, memory of the process."""
