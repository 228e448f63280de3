"""Bundles that tests only read, which `Once` compiles once in a run, and what a bundle translates to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hmc.artifact import PRECISIONS, Precision
from tests.tiny import SENTENCES


def bundle_at(
    path: Path,
    checkpoint: Path,
    heads: Sequence[int | None] = (None,),
    precisions: Sequence[Precision] = ("fp32",),
    device_form: bool | None = None,
) -> None:
    """Compiles a bundle: each number of heads in each precision. Integers are calibrated on SENTENCES."""
    from hmc.compiler import LevelRequest, compile_bundle

    requests = [LevelRequest(checkpoint, number) for number in heads]
    text = SENTENCES if any(PRECISIONS[precision].quantised for precision in precisions) else ()
    compile_bundle(requests, path, precisions=precisions, calibration=text, device_form=device_form)


def translated(bundle: Path, texts: Sequence[str], level: str | None = None, **options: Any) -> list[str]:
    """Translations of texts, each as one sentence, by HMC's engine. options: fields of `DecodeOptions`."""
    from hmc.serving import DecodeOptions, Translator

    with Translator(bundle, level, device="cpu", threads=1) as translator:
        return [found.text for found in translator.translate(texts, DecodeOptions(**options), segmentation="none")]
