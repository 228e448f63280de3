"""Serving: tokeniser, decode engine, scheduler, gRPC service and client (ONNX Runtime, grpcio; no torch, no onnx)."""

from hmc.serving.options import DecodeOptions, Sampling, Target
from hmc.serving.results import Translation
from hmc.serving.translator import Translator

__all__ = ["DecodeOptions", "Sampling", "Target", "Translation", "Translator"]
