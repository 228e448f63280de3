"""The pipeline: one ordered list of passes over a level being compiled, with the reason for every ordering."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from hmc.artifact.architecture import Architecture, parameter_count
from hmc.artifact.bundle import VARIANTS, Level, Precision, decoder_path, encoder_path, shortlist_path
from hmc.artifact.checkpoint import Checkpoint, Tensors
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.heads import HeadLayout
from hmc.artifact.shortlist import Lexicon
from hmc.compiler.calibrate import calibrate
from hmc.compiler.check import check_parity, check_runs
from hmc.compiler.decoder_graph import author_decoder
from hmc.compiler.encoder_graph import author_encoder
from hmc.compiler.head_width import slim_model
from hmc.compiler.int4 import Int4Linears
from hmc.compiler.layouts import Ranking, Target, choose_layout
from hmc.compiler.linears import FloatLinears, Int8Linears, Linears
from hmc.compiler.precise_layers import Quantization, settle
from hmc.compiler.serialize import check_structure, write_graph, write_lexicon
from hmc.compiler.shortlist_graph import author_shortlist

CALIBRATED: tuple[Precision, ...] = ("int8", "int4")
"""Precisions with activation ranges."""
FLOATS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
"""Precision → the type of weights and activations, where they are floats."""


@dataclass
class LevelDraft:
    """A level on its way through the passes; each pass fills in what the next ones need."""

    name: str
    checkpoint: Checkpoint
    digest: str
    target_heads: Target | None
    precision: Precision
    bundle: Path
    probe: Sequence[Sequence[int]]
    """Sentences (ids with EOS) for the parity check."""
    calibration: Sequence[Sequence[int]]
    """Real sentences (ids with EOS) for the activation ranges of int8 and int4; may be empty for other precisions."""
    verified: set[HeadLayout] = field(default_factory=set)
    """Layouts of this checkpoint that passed the parity check already; its other levels share it."""
    calibrated: dict[HeadLayout, Quantization] = field(default_factory=dict)
    """How its layouts are quantised, as far as that is known already, shared likewise."""
    rank_by: Ranking | None = None
    lexicon: Lexicon | None = None
    """Makes it a level with vocabulary shortlists."""
    layout: HeadLayout | None = None
    arch: Architecture | None = None
    """Of the graphs: the checkpoint's, but for the width of heads."""
    tensors: Tensors = field(default_factory=dict)
    linears: Linears | None = None
    encoder_linears: Linears | None = None
    fp32_layers: tuple[str, ...] = ()
    """Of int8 and int4, what stays in fp32."""
    graphs: dict[str, ir.Model] = field(default_factory=dict)
    level: Level | None = None


def select_layout(draft: LevelDraft) -> None:
    """Chooses the open heads."""
    draft.layout = choose_layout(draft.checkpoint, draft.target_heads, draft.rank_by)


def verify_layout(draft: LevelDraft) -> None:
    """Slim ≡ masked in fp32 on the probe sentences; once for a layout, whatever the precisions."""
    assert draft.layout is not None
    if draft.layout not in draft.verified:
        check_parity(draft.checkpoint, draft.layout, draft.probe)
        draft.verified.add(draft.layout)


def slim_weights(draft: LevelDraft) -> None:
    """Removes closed heads from the weights, and gives open ones the width that operators want."""
    assert draft.layout is not None
    draft.arch, draft.tensors = slim_model(draft.checkpoint, draft.layout)


def choose_precision(draft: LevelDraft) -> None:
    """Decides how linears are authored; int8 and int4 calibrate on real sentences.

    int4 is for the decoder: the encoder reads its weights once for all positions of a sentence.
    """
    assert draft.layout is not None
    assert draft.arch is not None
    if draft.precision in CALIBRATED:
        if draft.layout not in draft.calibrated:
            calibration = calibrate(draft.arch, draft.layout, draft.tensors, draft.calibration)
            draft.calibrated[draft.layout] = settle(draft.arch, draft.layout, draft.tensors, calibration)
        found = draft.calibrated[draft.layout]
        if draft.lexicon and "shared" in found.fp32:
            raise InvalidRequestError(
                f"{draft.name}: this model loses quality where its output projection is in 8 bits, and vocabulary "
                "shortlists need it so: leave --shortlist out"
            )
        draft.fp32_layers, ranges = found.fp32, found.ranges
        draft.encoder_linears = Int8Linears(ranges)
        draft.linears = Int4Linears(ranges) if draft.precision == "int4" else draft.encoder_linears
    else:
        draft.linears = FloatLinears(FLOATS[draft.precision])
        draft.encoder_linears = draft.linears


def author_graphs(draft: LevelDraft) -> None:
    """Writes all graphs in memory."""
    assert draft.layout is not None
    assert draft.arch is not None
    assert draft.linears is not None
    assert draft.encoder_linears is not None
    arch, metadata = draft.arch, {"hmc.level": draft.name, "hmc.precision": draft.precision}
    encoder = author_encoder(arch, draft.layout, draft.tensors, draft.encoder_linears)
    draft.graphs = {encoder_path(draft.name): encoder.model(metadata)}
    for variant in (None, *VARIANTS):
        decoder = author_decoder(
            arch, draft.layout, draft.tensors, draft.linears,
            variant=variant, listed=draft.lexicon is not None,
        )  # fmt: skip
        draft.graphs[decoder_path(draft.name, variant)] = decoder.model(metadata)
    if draft.lexicon:
        draft.graphs[shortlist_path(draft.name)] = author_shortlist(draft.tensors, draft.linears).model(metadata)


def check_graphs(draft: LevelDraft) -> None:
    """ONNX checker on every graph."""
    for model in draft.graphs.values():
        check_structure(model)


def write_level(draft: LevelDraft) -> None:
    """Writes graphs and weights; the manifest entry describes what is on disk."""
    assert draft.layout is not None
    written = [write_graph(model, draft.bundle, name) for name, model in draft.graphs.items()]
    files = {name: digest for graph in written for name, digest in graph.files.items()}
    lexicon = None
    if draft.lexicon:
        lexicon, digest = write_lexicon(draft.lexicon, draft.bundle)
        files[lexicon] = digest
    draft.level = Level(
        name=draft.name,
        precision=draft.precision,
        head_layout=draft.layout.to_json(),
        parameters=parameter_count(draft.checkpoint.architecture, draft.layout, draft.checkpoint.ffn_widths),
        bytes=sum((draft.bundle / name).stat().st_size for name in files),
        source_checkpoint=draft.digest,
        files=dict(sorted(files.items())),
        shortlist=lexicon,
        fp32_layers=draft.fp32_layers,
    )


def run_level(draft: LevelDraft) -> None:
    """Translates the probe sentences with the graphs as they were written, on a CPU, which takes fp16 but not bf16."""
    assert draft.layout is not None
    if draft.precision != "bf16":
        check_runs(draft.checkpoint.architecture, draft.layout, draft.bundle, draft.name, draft.probe)


PASSES: list[Callable[[LevelDraft], None]] = [
    select_layout,
    verify_layout,  # before anything is quantised: it compares fp32 with fp32, at a tolerance that means something
    slim_weights,
    choose_precision,  # after slimming: activation ranges are those of the model that will be served
    author_graphs,
    check_graphs,  # before writing: writing moves weights out of the graph, and nothing wrong may reach the disk
    write_level,
    run_level,
]


def compile_level(draft: LevelDraft, progress: Callable[[str], None]) -> Level:
    """Runs every pass; `progress` hears the name of each as it starts."""
    for step in PASSES:
        progress(f"{draft.name}: {step.__name__.replace('_', ' ')}")
        step(draft)
    assert draft.level is not None
    return draft.level
