"""Checks that an imported MarianMT model translates as in Transformers, and an exported one as in HMC.

    python -m experiments.marian DIRECTORY --source FILE --reference FILE [--sentences N] [--heads N] [--report FILE]

Imported: `hmc import`, `hmc compile` at fp32 and the engine, against `MarianMTModel.generate` at fp32 in PyTorch with
the directory's generation config (`--beam` beams); each with its own tokenizer, text to text. BLEU by sacreBLEU.
Exported: `hmc export` of the same checkpoint, and `--masked` of a slim one that keeps the heads of highest I_h; both in
Transformers and, after its own converter, in CTranslate2 at fp32, against our engine on the checkpoint that was
exported. Where outputs differ, both are scored in double precision; against Transformers the search is repeated with
weights changed by about as much as rounding changes them; if that gives both outputs, they are a near tie.
CTranslate2 takes the embedding of pad for zero, and pad for a token that is never written. So it gets the directory
that `--zero-start` writes, which runs in Transformers too; the number of equal sentences without it is reported too.
CTranslate2 stops once as many hypotheses have ended as the beam is wide, so the engine runs with patience 1 against it.
As in the engine an empty translation counts (`min_decoding_length=0`). Models with separate vocabularies for source and
target are not run in CTranslate2: its converter uses the source's for both.

Nothing is timed. Ends with status 1 when BLEU is further apart than `--tolerance`, or when Transformers writes
something else that is no near tie.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sacrebleu.metrics import BLEU

from experiments.peers.marian import PeerOutput, with_ctranslate2, with_transformers
from experiments.support.decoding import opened, source_ids, together
from experiments.support.judge import Comparison, Ids, Judge, compare
from experiments.support.script import machine_report, run_script, write_report
from hmc.artifact.bundle.checks import validate
from hmc.artifact.checkpoint.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from hmc.artifact.checkpoint.slimming import slim_tensors
from hmc.artifact.marian.generation import ignored
from hmc.artifact.marian.reader import import_marian
from hmc.artifact.marian.writer import export_marian
from hmc.artifact.model.heads import select_heads
from hmc.artifact.tokenizer.tokenizer import open_tokenizer
from hmc.benchmark.measure.text import TestSet
from hmc.compiler.bundle.requests import LevelRequest
from hmc.compiler.bundle.writer import compile_bundle
from hmc.engine.requests.options import DecodeOptions
from hmc.training.data.batches import make_batch
from hmc.training.data.vocabulary import Vocabulary
from hmc.training.model.checkpoints import model_from_checkpoint
from hmc.training.model.importance import corpus_importance

IMPORTANCE_SENTENCES = 200


@dataclass(frozen=True)
class Ours:
    """A checkpoint and its translations by the engine."""

    sources: list[list[int]]
    ids: list[Ids]
    texts: list[str]


def translate(checkpoint: Path, folder: Path, texts: list[str], options: DecodeOptions) -> Ours:
    """Compiles a checkpoint at fp32 and translates with it."""
    if not folder.is_dir():
        compile_bundle([LevelRequest(checkpoint)], folder)
    manifest = validate(folder)
    tokenizer = open_tokenizer(load_checkpoint(checkpoint).tokenizer)
    sources = source_ids(folder, manifest, texts)
    with opened(folder, manifest, manifest.default_level, 0) as engine:
        ids = [h.ids for h in together(engine, sources, options)]
    return Ours(sources, ids, [tokenizer.decode(i) for i in ids])


def slim_checkpoint(checkpoint: Checkpoint, test_set: TestSet, heads: int) -> Checkpoint:
    """The checkpoint with the heads of highest I_h (Michel et al. 2019) over sentences of the test set, slimmed."""
    vocabulary, arch = Vocabulary(checkpoint.tokenizer), checkpoint.architecture
    pairs = list(zip(test_set.sources, test_set.references or (), strict=True))[:IMPORTANCE_SENTENCES]
    ids = [vocabulary.encode_pair(*pair) for pair in pairs]
    groups = [ids[start : start + 32] for start in range(0, len(ids), 32)]
    batches = [make_batch([s for s, _ in group], [t for _, t in group], arch.pad_id) for group in groups]
    scores = corpus_importance(model_from_checkpoint(checkpoint), batches)
    layout = select_heads(scores, checkpoint.layout, heads)
    config = checkpoint.config.model_copy(update={"head_layout": layout.to_json()})
    tensors = slim_tensors(checkpoint.tensors, arch, checkpoint.layout, layout)
    return Checkpoint(config, tensors, checkpoint.tokenizer)


def against(
    ours: Ours, theirs: PeerOutput, checkpoint: Checkpoint, options: DecodeOptions, *, search: bool
) -> Comparison:
    """Compares the ids of both. search: the peer searches as our reference does, so near ties can be recognised."""
    judge = Judge(checkpoint, length_penalty=options.length_penalty)
    beam, limit = options.beam_size, options.max_length or 0

    def near_tie(n: int, pair: tuple[Ids, Ids]) -> bool | None:
        return judge.near_tie(ours.sources[n], pair, beam=beam, limit=limit) if search else None

    return compare(ours.sources, ours.ids, theirs.ids, judge, near_tie)


def check_exported(
    name: str, checkpoint: Checkpoint, folder: Path, test_set: TestSet, options: DecodeOptions
) -> tuple[dict[str, Any], bool]:
    """An exported checkpoint in both engines, as it is and started from zeros; and whether every difference in
    Transformers is a near tie."""
    texts, arch, patience_1 = list(test_set.sources), checkpoint.architecture, replace(options, patience=1.0)
    save_checkpoint(checkpoint, folder / name)
    stored = load_checkpoint(folder / name)
    print(f"\nexported, {name}, {checkpoint.layout.total} heads")
    report: dict[str, Any] = {"heads": checkpoint.layout.total}
    ours = translate(folder / name, folder / f"{name}-bundle", texts, options)
    ours_patience_1 = translate(folder / name, folder / f"{name}-bundle", texts, patience_1)
    well = True
    for title, zero_start in (("", False), (", --zero-start", True)):
        directory = folder / f"{name}{'-zero' * zero_start}-exported"
        export_marian(stored, directory, masked=True, zero_start=zero_start)
        hugging_face = against(
            ours, with_transformers(directory, arch, texts, options), checkpoint, options, search=True
        )
        print(f"  Transformers{title}: {hugging_face}")
        compared = {"transformers": hugging_face.to_json()}
        well &= hugging_face.explained
        if arch.source_vocab_size is None:
            theirs = with_ctranslate2(directory, Path(f"{directory}-ct2"), arch, ours.sources, options)
            ctranslate2 = against(ours_patience_1, theirs, checkpoint, options, search=False)
            print(
                f"  CTranslate2{title}: {ctranslate2 if zero_start else f'{ctranslate2.equal} of {len(texts)} equal'}"
            )
            compared["ctranslate2"] = ctranslate2.to_json()
        report["zero_start" if zero_start else "as_it_is"] = compared
    return report, well


def check_imported(
    directory: Path, checkpoint: Checkpoint, folder: Path, test_set: TestSet, options: DecodeOptions, tolerance: float
) -> tuple[dict[str, Any], bool]:
    """BLEU of the directory here and in Transformers; and whether they are within `tolerance`."""
    texts = list(test_set.sources)
    save_checkpoint(checkpoint, folder / "imported")
    ours = translate(folder / "imported", folder / "imported-bundle", texts, options)
    theirs = with_transformers(directory, None, texts, options)
    bleu = BLEU()
    scores = {
        name: bleu.corpus_score(list(found), [list(test_set.references or ())]).score
        for name, found in (("hmc", ours.texts), ("transformers", theirs.texts))
    }
    gap, signature = abs(scores["hmc"] - scores["transformers"]), str(bleu.get_signature())
    compared = against(ours, theirs, checkpoint, options, search=True)
    same_texts = sum(a == b for a, b in zip(ours.texts, theirs.texts, strict=True))
    tokenized_equal = sum(a == b for a, b in zip(ours.sources, theirs.sources, strict=True))
    print(f"\nimported: BLEU {scores['hmc']:.2f} here, {scores['transformers']:.2f} in Transformers ({signature})")
    print(f"  texts: {same_texts} of {len(texts)} equal; tokenised identically: {tokenized_equal}\n  ids: {compared}")
    report = {"bleu": scores, "signature": signature, "texts_equal": same_texts, "tokenized_equal": tokenized_equal}
    return report | {"ids": compared.to_json()}, gap <= tolerance and compared.explained


def main() -> int:
    """Parses arguments, compares, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="MarianMT directory in the layout of OPUS-MT")
    parser.add_argument("--source", type=Path, required=True, help="sentences, one a line, plain or .gz")
    parser.add_argument("--reference", type=Path, required=True, help="translations of --source, line for line")
    parser.add_argument("--sentences", type=int, help="sentences to compare; default: all")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--heads", type=int, help="heads left in the slim checkpoint; default: three quarters of all")
    parser.add_argument(
        "--tolerance", type=float, default=0.1, help="largest difference allowed between both BLEU scores"
    )
    parser.add_argument("--report", type=Path, help="write the results to this file, as JSON")
    arguments = parser.parse_args()
    print(__doc__)
    test_set = TestSet.read(arguments.source, arguments.reference, limit=arguments.sentences)
    checkpoint = import_marian(arguments.directory)
    arch, decoding = checkpoint.architecture, checkpoint.config.provenance["generation"]
    # Transformers' max_length counts the token that starts the decoder.
    limit = min(decoding.get("max_length", arch.max_positions) - 1, arch.max_positions - 1)
    penalty = float(decoding.get("length_penalty", 1.0))
    options = DecodeOptions(beam_size=arguments.beam, length_penalty=penalty, max_length=limit)
    report: dict[str, Any] = {"machine": machine_report(), "sentences": len(test_set.sources)}
    report["options"] = asdict(options)
    if unheeded := ignored(decoding, arch):
        print(f"of the directory's generation config HMC does not heed {', '.join(unheeded)}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        report["imported"], well = check_imported(
            arguments.directory, checkpoint, folder, test_set, options, arguments.tolerance
        )
        slim = slim_checkpoint(checkpoint, test_set, arguments.heads or checkpoint.layout.total * 3 // 4)
        for title, variant in (("full", checkpoint), ("slim", slim)):
            report[title], explained = check_exported(title, variant, folder, test_set, options)
            well &= explained
    write_report(arguments.report, report)
    return 0 if well else 1


if __name__ == "__main__":
    run_script(main)
