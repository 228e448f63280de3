"""The pipeline: the stages of one level, from chosen heads to files on disk, in the order that they need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path

import onnx_ir as ir

from hmc.artifact.bundle.manifest import (
    SEARCH_VARIANTS,
    VARIANTS,
    Level,
    collect_path,
    decoder_path,
    encoder_path,
    shortlist_path,
)
from hmc.artifact.bundle.shortlist import Lexicon
from hmc.artifact.checkpoint.checkpoint import Checkpoint, checkpoint_digest, load_checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.architecture import parameter_count
from hmc.artifact.model.heads import KINDS, HeadLayout
from hmc.artifact.precisions import PRECISIONS, Precision
from hmc.compiler.calibration.calibrate import calibrate
from hmc.compiler.calibration.fp32_layers import Quantization, choose_fp32_layers, without
from hmc.compiler.checks.in_place import check_in_place
from hmc.compiler.checks.parity import check_parity
from hmc.compiler.checks.runner import Ids
from hmc.compiler.checks.runs import check_runs
from hmc.compiler.derived import DerivedArrays
from hmc.compiler.graphs.decoder import author_decoder
from hmc.compiler.graphs.encoder import author_encoder
from hmc.compiler.graphs.search.graphs import author_collect
from hmc.compiler.graphs.shortlist import author_shortlist
from hmc.compiler.precisions.int4 import Int4Linears
from hmc.compiler.precisions.int8 import Int8Linears, quantize_columns
from hmc.compiler.precisions.linears import FloatLinears, Linears
from hmc.compiler.programs import ProgramWriter, write_program
from hmc.compiler.serialize import BundleFolder, check_structure
from hmc.compiler.weights import OrderedHeads, Ranking, SlimModel, slim_model

STEPS = (
    "slim weights", "verify layout", "choose precision", "author graphs", "check graphs", "write level", "run level",
)  # fmt: skip
"""What `compile_level` reports as progress, in this order."""
IN_PROGRAMS: tuple[Precision, ...] = ("fp32", "fp16", "bf16", "int8")
"""Precisions whose levels get a step program. Weights in 4 bits are for ONNX Runtime alone."""
QUANTISED: Mapping[Precision, type[Int8Linears]] = {"int8": Int8Linears, "int4": Int4Linears}
"""Precision with integer weights → how the linear layers of its decoders are written."""


@dataclass
class LevelSource:
    """A checkpoint, and what its levels share while they are compiled one after the other."""

    path: Path
    folder: BundleFolder
    """The bundle that its levels are written to."""
    verified: set[HeadLayout] = field(default_factory=set)
    """Layouts that passed the parity check."""
    quantized: dict[HeadLayout, Quantization] = field(default_factory=dict)
    """How the layouts are quantised that have a level in int8 or int4."""
    planned: list[tuple[HeadLayout, Precision]] = field(default_factory=list)
    """The levels that will be compiled, as far as they are known. Heads are ordered by them, and then by rank."""
    rank_by: Ranking | None = None
    """The score that heads are ranked by; None: the first of `BY_DEFAULT` that the checkpoint has."""
    _slim: SlimModel | None = None

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint. Raises InvalidArtifactError."""
        return load_checkpoint(self.path)

    @cached_property
    def digest(self) -> str:
        """Digest of its files (see `checkpoint_digest`)."""
        return checkpoint_digest(self.path)

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, folder: BundleFolder) -> LevelSource:
        """A source whose checkpoint is in memory and on no disk, and has no digest."""
        source = cls(Path(), folder)
        source.checkpoint = checkpoint
        source.digest = ""
        return source

    @property
    def derived(self) -> DerivedArrays:
        """Stacked, converted and quantised weights, shared by all graphs of the bundle."""
        return self.folder.derived

    def slim(self, layout: HeadLayout) -> SlimModel:
        """The weights of a layout. The last one is remembered: the precisions of a layout are compiled in a row."""
        if self._slim is None or self._slim.layout != layout:
            self._slim = slim_model(self.checkpoint, layout, self._ordered)
            if self._widest and layout == self._widest.layout:
                self._slim.tensors.update(self._widest.tensors)
        return self._slim

    def share_scales(self, model: SlimModel) -> None:
        """Quantises W_O of nested levels by the scales of the widest level. The integers of a level are then the first
        rows of the widest level's. The scales of W_Q, W_K and W_V belong to single heads anyway."""
        wide = self._widest
        if wide is None or model.layout == wide.layout or model.order is None or wide.order is None:
            return
        for kind in KINDS:
            for layer, (narrow, all_) in enumerate(zip(model.order[kind], wide.order[kind], strict=True)):
                name = model.arch.attention(kind, layer).output.weight
                if narrow and list(narrow) == list(all_[: len(narrow)]):
                    integers, scales = self.derived.get(quantize_columns, wide.tensors[name])
                    narrow_arrays = integers[: model.tensors[name].shape[1]], scales
                    self.derived.put(quantize_columns, model.tensors[name], narrow_arrays)

    @cached_property
    def _ordered(self) -> OrderedHeads:
        """The weights in the order in which levels drop heads."""
        layouts = dict.fromkeys(layout for layout, _ in self.planned)
        return OrderedHeads.nested(self.checkpoint, layouts, self.rank_by)

    @cached_property
    def _widest(self) -> SlimModel | None:
        """Of the widest of the quantised levels that are planned, W_O of every layer."""
        layouts = [layout for layout, precision in self.planned if PRECISIONS[precision].quantised]
        if not layouts:
            return None
        whole = slim_model(self.checkpoint, max(layouts, key=attrgetter("total")), self._ordered)
        tensors = {}
        for kind in KINDS:
            for layer in range(len(whole.layout[kind])):
                name = whole.arch.attention(kind, layer).output.weight
                if name in whole.tensors:
                    tensors[name] = whole.tensors[name]
        return replace(whole, tensors=tensors)


@dataclass(frozen=True)
class ChosenLevel:
    """A level whose heads are chosen: the input of the pipeline."""

    name: str
    source: LevelSource
    layout: HeadLayout
    precision: Precision
    lexicon: Lexicon | None
    """Makes it a level with vocabulary shortlists."""
    device_form: bool = False
    """Whether it gets the graphs of a device: an encoder that writes into the caches, and searches."""


@dataclass(frozen=True)
class Sentences:
    """Token ids with EOS."""

    probe: Ids
    """For the checks; never empty."""
    calibration: Ids
    """Real ones, for the activation ranges of int8 and int4. May be empty for other precisions."""


@dataclass(frozen=True)
class Quantised:
    """A level whose precision is settled for every layer."""

    model: SlimModel
    encoder_linears: Linears
    linears: Linears
    """Of the decoder."""
    fp32_layers: tuple[str, ...] = ()
    """Layers of an int8 or int4 level that stay in fp32."""


def compile_level(chosen: ChosenLevel, sentences: Sentences, progress: Callable[[str], None]) -> Level:
    """Compiles one level into its source's folder. Returns its entry for the manifest.

    `progress` is called with the name of each of STEPS as it starts. Raises InvalidRequestError for problems that the
    user can solve, and ParityError or BrokenGraphError for defects of the compiler.
    """
    steps = iter(STEPS)

    def begin() -> None:
        progress(f"{chosen.name}: {next(steps)}")

    begin()
    model = chosen.source.slim(chosen.layout)
    begin()  # before anything is quantised: fp32 is compared with fp32, at a tolerance that excludes real differences
    _verify(chosen, model, sentences)
    begin()  # after slimming: activation ranges are those of the model that will be served
    quantised = _quantise(chosen, model, sentences)
    begin()
    graphs = _author(chosen, quantised)
    begin()  # before writing: writing moves the weights out of the graphs, and no invalid graph may reach the disk
    for name, graph in graphs.items():
        check_structure(graph)
        if chosen.device_form:
            check_in_place(graph, name)
    begin()
    level = _write(chosen, quantised, graphs)
    begin()  # last: it reads what a server will read
    _run(chosen, level, sentences)
    return level


def compile_trial(chosen: ChosenLevel, sentences: Sentences, fp32_layers: Sequence[str] = ()) -> Level:
    """Compiles a level that is only timed, in a fraction of the time: its numbers are not checked against anything.

    fp32_layers: layers of an int8 or int4 level that stay in fp32. `compile_level` measures which layers have to.
    """
    source = chosen.source
    traits = PRECISIONS[chosen.precision]
    model = source.slim(chosen.layout)
    if traits.quantised:
        ranges = without(calibrate(model, sentences.calibration, source.derived).ranges, fp32_layers)
        source.quantized[chosen.layout] = Quantization(ranges, tuple(fp32_layers), 0.0)
    quantised = _quantise(chosen, model, sentences)
    graphs = _author(chosen, quantised)
    for graph in graphs.values():
        check_structure(graph)
    return _write(chosen, quantised, graphs)


def _verify(chosen: ChosenLevel, model: SlimModel, sentences: Sentences) -> None:
    """Checks slim ≡ masked in fp32: once for a layout, as precisions do not matter to it."""
    source = chosen.source
    if chosen.layout not in source.verified:
        check_parity(source.checkpoint, model, sentences.probe, source.derived)
        source.verified.add(chosen.layout)


def _quantise(chosen: ChosenLevel, model: SlimModel, sentences: Sentences) -> Quantised:
    """Settles the precision of every layer; int8 and int4 are calibrated on real sentences, once for a layout.

    Only decoders are in 4 bits. An encoder reads its weights once for all positions of a sentence, and gains nothing.
    """
    source = chosen.source
    traits = PRECISIONS[chosen.precision]
    derived = source.derived
    if not traits.quantised:
        linears = FloatLinears(traits.floats, derived)
        return Quantised(model, linears, linears)
    source.share_scales(model)
    if chosen.layout not in source.quantized:
        calibration = calibrate(model, sentences.calibration, derived)
        source.quantized[chosen.layout] = choose_fp32_layers(model, calibration, derived)
    quantization = source.quantized[chosen.layout]
    if chosen.lexicon and model.arch.output_layer in quantization.fp32:
        raise InvalidRequestError(
            f"{chosen.name}: vocabulary shortlists need the output projection in 8 bits, and this model loses quality "
            "with it: leave the shortlist out"
        )
    encoder = Int8Linears(quantization.ranges, derived=derived)
    decoder = QUANTISED[chosen.precision](quantization.ranges, derived=derived)
    return Quantised(model, encoder, decoder, quantization.fp32)


def _author(chosen: ChosenLevel, quantised: Quantised) -> dict[str, ir.Model]:
    """Path within the bundle → graph, for all graphs of the level."""
    name = chosen.name
    model = quantised.model
    linears = quantised.linears
    metadata = {"hmc.level": name, "hmc.precision": chosen.precision}
    encoder = author_encoder(
        model.arch, model.layout, model.tensors, quantised.encoder_linears, device_form=chosen.device_form
    )
    graphs = {encoder_path(name): encoder.model(metadata)}
    for variant in (None, *VARIANTS, *(SEARCH_VARIANTS if chosen.device_form else ())):
        decoder = author_decoder(
            model.arch,
            model.layout,
            model.tensors,
            linears,
            variant=variant,
            with_shortlist=chosen.lexicon is not None,
            device_form=chosen.device_form,
            order=model.order,
        )
        graphs[decoder_path(name, variant)] = decoder.model(metadata)
    if chosen.device_form:
        graphs[collect_path(name)] = author_collect().model(metadata)
    if chosen.lexicon:
        graphs[shortlist_path(name)] = author_shortlist(model.arch, model.tensors, linears).model(metadata)
    return graphs


def _write(chosen: ChosenLevel, quantised: Quantised, graphs: dict[str, ir.Model]) -> Level:
    """Writes graphs, weights and the lexicon. The manifest entry describes what is on disk."""
    source = chosen.source
    files: dict[str, str] = {}
    for name, model in graphs.items():
        files |= source.folder.write_graph(model, name)
    if chosen.precision in IN_PROGRAMS:
        slim = quantised.model
        writer = ProgramWriter(
            slim.arch, slim.layout, slim.tensors, quantised.linears, quantised.encoder_linears,
            shortlist=chosen.lexicon is not None, order=slim.order,
        )  # fmt: skip
        files |= write_program(writer, source.folder, chosen.name)
    lexicon = source.folder.write_lexicon(chosen.lexicon) if chosen.lexicon else {}
    files |= lexicon
    checkpoint = source.checkpoint
    return Level(
        name=chosen.name,
        precision=chosen.precision,
        head_layout=chosen.layout.to_json(),
        parameters=parameter_count(
            checkpoint.architecture, chosen.layout, checkpoint.ffn_widths, checkpoint.removed_layers
        ),
        bytes=sum((source.folder.path / name).stat().st_size for name in files),
        source_checkpoint=source.digest,
        files=dict(sorted(files.items())),
        shortlist=next(iter(lexicon), None),
        fp32_layers=quantised.fp32_layers,
    )


def _run(chosen: ChosenLevel, level: Level, sentences: Sentences) -> None:
    """Runs the written graphs on a CPU, if it has the operators."""
    if PRECISIONS[chosen.precision].runs_on_cpu:
        source = chosen.source
        check_runs(source.checkpoint.architecture, level, source.folder.path, sentences.probe)
