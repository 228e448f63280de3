"""The CUDA path's cache logic, run on the CPU: graphs that gather parents give the same translations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hmc.artifact.bundle import VARIANTS, read_manifest
from hmc.artifact.checkpoint import load_checkpoint
from hmc.artifact.slimming import slim_tensors
from hmc.compiler.decoder_graph import author_decoder
from hmc.compiler.linears import FloatLinears
from hmc.compiler.runner import open_session
from hmc.compiler.serialize import serialized
from hmc.serving import batch
from hmc.serving.constraints import Constraints
from hmc.serving.device_caches import DeviceCaches
from hmc.serving.engine import Engine
from hmc.serving.options import DecodeOptions, Sampling
from hmc.serving.sessions import Device, LevelSessions

OPTIONS = [
    *(DecodeOptions(beam_size=b, max_length=40, n_best=b) for b in (1, 4)),
    DecodeOptions(beam_size=3, max_length=40, coverage_penalty=0.3, repetition_penalty=1.2, no_repeat_ngram_size=2),
    DecodeOptions(n_best=2, max_length=40, sampling=Sampling(seed=1)),
    DecodeOptions(n_best=2, max_length=40, sampling=Sampling(seed=1, top_p=0.8)),
]


def test_same_translations_as_the_host_caches(
    lively_bundle: Path, lively_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, checkpoint = read_manifest(lively_bundle), load_checkpoint(lively_checkpoint)
    level = manifest.level("h12")
    sessions = LevelSessions.open(lively_bundle, manifest.architecture, level, Device("cpu"), 1)
    rng = np.random.default_rng(0)
    sources = [[*rng.integers(3, 120, size=n).tolist(), 0] for n in rng.integers(1, 50, size=25)]

    def decode() -> list[object]:
        running = Engine(sessions, queue_size=200, max_rows=12)
        futures = [running.submit(s, o, Constraints((5, 6) if s[0] % 2 else ())) for o in OPTIONS for s in sources]
        found = [[(h.ids, round(h.score, 4)) for h in f.result().hypotheses] for f in futures]
        running.close()
        return found  # type: ignore[return-value]

    expected = decode()
    arch = manifest.architecture
    tensors = slim_tensors(checkpoint.tensors, arch, checkpoint.layout, level.layout)
    for variant in (None, *VARIANTS):
        graph = author_decoder(arch, level.layout, tensors, FloatLinears(), gather_parents=True, variant=variant)
        sessions.decoders[variant] = open_session(serialized(graph.model({})))
    for name in ("TreeCaches", "RowCaches"):
        monkeypatch.setattr(batch, name, DeviceCaches)
    monkeypatch.setattr(batch, "run_ahead", lambda caches, state, answer, undisturbed: answer)
    assert decode() == expected
