"""Translates token ids: batches, search, and what runs a level. No service, no PyTorch, no onnx."""

import hmc.artifact  # noqa: F401 - switches off the telemetry of ONNX Runtime, before any module imports it
