"""Parts of several tests of analyses: a layout, the trained model, the loss of a model's own forward pass."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch

from hmc.artifact import Head, HeadLayout, read_manifest
from hmc.artifact.bundle.manifest import Quality, write_manifest
from hmc.training import make_batch, mask_to_layout, open_gates
from hmc.training.analysis.common.measure import Settings
from hmc.training.analysis.common.subject import Subject, Text, read_text
from hmc.training.model.loss import cross_entropy_sum

LAYOUT = HeadLayout.from_json(
    {"encoder_self": [[0, 1, 3], [2]], "decoder_self": [[0, 1, 2, 3], []], "cross": [[1, 2], [0, 3]]}
)
"""12 heads of 24: uneven, one layer with a single head, one with none."""
LOSS = Settings(bleu=False, resamples=100)


def without(heads: list[Head]) -> HeadLayout:
    """LAYOUT without `heads`."""
    return HeadLayout.from_heads([h for h in LAYOUT.heads() if h not in heads], 2, 2)


def loss_of(subject: Subject, text: Text, layout: HeadLayout) -> float:
    """Nats per token with only `layout` open."""
    mask_to_layout(subject.model, subject.layout, layout)
    try:
        ids = [tuple(subject.vocabulary.encode(side) for side in pair) for pair in text.pairs]
        batch = make_batch([s for s, _ in ids], [t for _, t in ids], subject.model.arch.pad_id)
        with torch.no_grad():
            total, tokens = cross_entropy_sum(subject.model, subject.model(batch.source, batch.target_in), batch, 0.0)
        return float(total) / tokens
    finally:
        open_gates(subject.model)


def two_texts(text: Text, folder: Path) -> list[Text]:
    """The pairs at even and at odd places as two texts, which are written into `folder`."""
    found = []
    for name, pairs in (("even", text.pairs[::2]), ("odd", text.pairs[1::2])):
        (folder / f"{name}.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in pairs), encoding="utf-8")
        found.append(read_text(f"{folder}/{name}.tsv", ("en", "de")))
    return found


def scored_bundle(bundle: Path, copy: Path, bleu: Mapping[str, float], beam: int = 4) -> Path:
    """A copy of `bundle` with only the levels in `bleu` and these scores. Δ is against `full`, its interval ±0.5."""
    shutil.copytree(bundle, copy)
    manifest = read_manifest(copy)
    manifest.levels = [level for level in manifest.levels if level.name in bleu]
    for level in manifest.levels:
        delta = bleu[level.name] - bleu["full"]
        level.quality = Quality(
            test_set="t", sentences=12, beam=beam, bleu=bleu[level.name], chrf=50.0, bleu_delta=delta,
            ci_low=delta - 0.5, ci_high=delta + 0.5, p_value=0.01, reference_level="full",
            bleu_signature="nrefs:1", chrf_signature="nrefs:1",
        )  # fmt: skip
    write_manifest(manifest, copy)
    return copy
