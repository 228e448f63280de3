"""Translates ids with `generate` of Transformers or of Optimum; see `engines.generate`. Imports nothing of HMC.

    python -m experiments.peers.generate_worker transformers|optimum MODEL_DIRECTORY [fp16|bf16]

Every translation has exactly `target` tokens. fp32, on the CPU; Transformers with another precision on CUDA.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from experiments.support.worker import serve


def load() -> tuple[Any, Callable[[Any], Any]]:
    """Request: `{"sources": ids with EOS, "beam", "target", "pad"}`; answer: the ids written."""
    library, folder = sys.argv[1], Path(sys.argv[2])
    import torch
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    precision = sys.argv[3] if len(sys.argv) > 3 else "fp32"
    model = _transformers(folder, precision) if library == "transformers" else _optimum(folder)

    def answer(request: Any) -> Any:
        sources, pad, target = request["sources"], request["pad"], request["target"]
        width = max(map(len, sources))
        ids = torch.tensor([[*row, *[pad] * (width - len(row))] for row in sources]).to(model.device)
        with torch.inference_mode():
            written = model.generate(
                input_ids=ids, attention_mask=ids.ne(pad).long(), num_beams=request["beam"], do_sample=False,
                min_new_tokens=target, max_new_tokens=target,
            )  # fmt: skip
        return written[:, 1:].tolist()

    packages = ("torch", "transformers", "optimum", "optimum-onnx", "onnxruntime")
    return {"threads": torch.get_num_threads(), "versions": _versions(packages)}, answer


def _transformers(folder: Path, precision: str) -> Any:
    import torch
    from transformers import MarianMTModel

    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    model: Any = MarianMTModel.from_pretrained(folder, dtype=dtype)
    return model.eval().to("cpu" if precision == "fp32" else "cuda")


def _optimum(folder: Path) -> Any:
    """The exported graphs stay beside the model."""
    try:
        from optimum.onnxruntime import ORTModelForSeq2SeqLM  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        sys.exit(
            f"the peer optimum cannot be used ({error}): pip install 'optimum[onnxruntime]' in an environment of its "
            "own and name its interpreter with --optimum-python, or leave optimum out of --peers"
        )
    graphs = folder.with_name(f"{folder.name}-optimum")
    if not graphs.is_dir():
        ORTModelForSeq2SeqLM.from_pretrained(folder, export=True).save_pretrained(graphs)
    return ORTModelForSeq2SeqLM.from_pretrained(graphs)


def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except ImportError:  # PackageNotFoundError is one
            continue
    return found


if __name__ == "__main__":
    serve(load)
