"""MarianMT directories become checkpoints and bundles that translate."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.artifact.marian.opus import edit, opus_directory, pieces_model, pieces_of, write_weights
from tests.manifests import changed_manifest
from tests.processes import environment
from tests.tiny import SENTENCES, tiny_architecture, tiny_tokenizer

from hmc.artifact import (
    InvalidArtifactError,
    bundle_problems,
    checkpoint_problems,
    load_checkpoint,
    save_checkpoint,
    validate,
)
from hmc.artifact.marian.generation import exported, ignored
from hmc.artifact.marian.reader import import_marian
from hmc.artifact.marian.vocabulary import marian_files
from hmc.artifact.model.architecture import sinusoidal_positions
from hmc.artifact.tokenizer.files import MarianFiles
from hmc.artifact.tokenizer.tokenizer import open_tokenizer


def test_every_tensor_and_number_is_the_directory_s(tmp_path: Path) -> None:
    arch = opus_directory(tmp_path / "opus", seed=3, activation_function="silu")
    checkpoint = import_marian(tmp_path / "opus")
    assert checkpoint.architecture == arch.model_copy(update={"activation": "swish"})
    assert checkpoint.layout.total == 24
    assert (checkpoint.config.source_language, checkpoint.config.target_language) == ("eng", "gmw")
    expected = write_weights(tmp_path / "opus", arch, seed=3)
    assert checkpoint.tensors.keys() == expected.keys()
    assert all(np.array_equal(checkpoint.tensors[name], expected[name]) for name in expected)
    assert isinstance(checkpoint.tokenizer, MarianFiles)
    assert checkpoint.tokenizer.target == (tmp_path / "opus" / "target.spm").read_bytes()


def test_the_checkpoint_is_whole_on_disk(opus: Path, tmp_path: Path) -> None:
    save_checkpoint(import_marian(opus), tmp_path / "c")
    assert checkpoint_problems(tmp_path / "c") == []
    assert load_checkpoint(tmp_path / "c").tokenizer == import_marian(opus).tokenizer
    (tmp_path / "c" / "target.spm").unlink()
    edit(tmp_path / "c" / "vocab.json", **{"▁extra": 500})
    problems = "\n".join(checkpoint_problems(tmp_path / "c"))
    assert "target.spm is missing" in problems
    assert "ids of" in problems


def test_a_vocabulary_of_another_model_is_a_problem_of_the_checkpoint(opus: Path, tmp_path: Path) -> None:
    save_checkpoint(import_marian(opus), tmp_path / "c")
    vocabulary = json.loads((tmp_path / "c" / "vocab.json").read_text())
    size = len(vocabulary)
    vocabulary["<unk>"], vocabulary["<pad>"] = vocabulary["<pad>"], vocabulary["<unk>"]
    (tmp_path / "c" / "vocab.json").write_text(json.dumps(vocabulary | {"▁extra": size}))
    problems = "\n".join(checkpoint_problems(tmp_path / "c"))
    assert f"{size + 1} entries, the model's vocabulary has {size}" in problems
    assert f"gives '<pad>' the id 1, the model's pad_id is {size - 1}" in problems


def test_older_files_hold_aliases_and_position_tables(opus: Path) -> None:
    before = import_marian(opus)
    tensors = load_file(opus / "model.safetensors")
    for name in ("lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"):
        tensors[name] = tensors["model.shared.weight"].copy()
    del tensors["model.shared.weight"]
    for stack in ("encoder", "decoder"):
        tensors[f"model.{stack}.embed_positions.weight"] = sinusoidal_positions(96, 64)
    save_file(tensors, opus / "model.safetensors")
    after = import_marian(opus)
    assert all(np.array_equal(before.tensors[name], after.tensors[name]) for name in before.tensors)


def test_half_precision_becomes_single(opus: Path) -> None:
    before = import_marian(opus)
    save_file({n: v.astype(np.float16) for n, v in load_file(opus / "model.safetensors").items()},
              opus / "model.safetensors")  # fmt: skip
    after = import_marian(opus)
    assert {value.dtype for value in after.tensors.values()} == {np.dtype(np.float32)}
    assert all(np.allclose(before.tensors[n], after.tensors[n], atol=2e-3, rtol=1e-3) for n in before.tensors)


BFLOAT16 = """
import sys
if sys.argv[2] == "without":
    sys.modules["ml_dtypes"] = None
from pathlib import Path
from hmc.artifact.errors import InvalidArtifactError
from hmc.artifact.marian.reader import import_marian
try:
    print(len(import_marian(Path(sys.argv[1])).tensors), "tensors")
except InvalidArtifactError as error:
    print(error)
"""


def test_bfloat16_is_read_where_numpy_knows_it(opus: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    before = import_marian(opus)
    tensors = load_file(opus / "model.safetensors")
    save_file({n: v.astype(ml_dtypes.bfloat16) for n, v in tensors.items()}, opus / "model.safetensors")
    after = import_marian(opus)
    assert all(np.allclose(before.tensors[n], after.tensors[n], rtol=1e-2, atol=1e-6) for n in before.tensors)
    for there, expected in (("with", f"{len(before.tensors)} tensors"), ("without", "needs ml_dtypes")):
        command = [sys.executable, "-c", BFLOAT16, str(opus), there]
        ran = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
        assert expected in ran.stdout
        assert ("pip install '.[compile]'" in ran.stdout) == (there == "without")


def one_model(opus: Path, joint: bytes) -> dict[str, int]:
    """Makes the SentencePiece model `joint` the tokenizer of both sides. Returns its vocabulary."""
    vocabulary = {piece: number for number, piece in enumerate(pieces_of(joint))}
    eos, unk, pad = (vocabulary[piece] for piece in ("</s>", "<unk>", "<pad>"))
    ids = {"vocab_size": len(vocabulary), "pad_id": pad, "eos_id": eos, "unk_id": unk}
    write_weights(opus, import_marian(opus).architecture.model_copy(update=ids))
    for name in ("source.spm", "target.spm"):
        (opus / name).write_bytes(joint)
    (opus / "vocab.json").write_text(json.dumps(vocabulary))
    fields = {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": eos, "vocab_size": len(vocabulary)}
    edit(opus / "config.json", **fields)
    return vocabulary


def test_one_model_whose_ids_are_the_vocabulary_becomes_tokenizer_model(opus: Path) -> None:
    joint = tiny_tokenizer()
    vocabulary = one_model(opus, joint)
    assert import_marian(opus).tokenizer == joint
    vocabulary["▁A"], vocabulary["."] = vocabulary["."], vocabulary["▁A"]
    (opus / "vocab.json").write_text(json.dumps(vocabulary))
    assert isinstance(import_marian(opus).tokenizer, MarianFiles)


def test_one_model_with_language_codes_keeps_its_files(opus: Path) -> None:
    """Marian removes a code from a text before SentencePiece splits it. A joint model would put `▁` before the code."""
    joint = pieces_model(SENTENCES, 120, pad_id=2, user_defined_symbols=[">>deu<<"])
    one_model(opus, joint)
    checkpoint = import_marian(opus)
    assert isinstance(checkpoint.tokenizer, MarianFiles)
    tokenizer = open_tokenizer(checkpoint.tokenizer)
    assert [tokenizer.source_piece(i) for i in tokenizer.encode(">>deu<< A man.")][:2] == [">>deu<<", "▁A"]
    with pytest.raises(InvalidArtifactError, match="MarianTokenizer removes it"):
        marian_files(joint, checkpoint.architecture)


def test_one_model_that_does_not_know_its_eos_keeps_its_files(opus: Path, tmp_path: Path) -> None:
    joint = pieces_model(SENTENCES, 120, unk_id=0, eos_id=-1, user_defined_symbols=["</s>", "<pad>"])
    one_model(opus, joint)
    checkpoint = import_marian(opus)
    assert isinstance(checkpoint.tokenizer, MarianFiles)
    save_checkpoint(checkpoint, tmp_path / "c")
    assert load_checkpoint(tmp_path / "c").tokenizer == checkpoint.tokenizer
    checkpoint.tokenizer = joint  # as earlier versions wrote it
    save_checkpoint(checkpoint, tmp_path / "c")
    assert load_checkpoint(tmp_path / "c").tokenizer == joint


def test_decoding_defaults_are_recorded_and_those_without_effect_named(opus: Path) -> None:
    checkpoint = import_marian(opus)
    decoding = checkpoint.config.provenance["generation"]
    assert (decoding["num_beams"], decoding["max_length"]) == (5, 77)
    assert ignored(decoding, checkpoint.architecture) == ["no_repeat_ngram_size", "forced_eos_token_id"]
    edit(opus / "config.json", bad_words_ids=[[3]])
    assert "bad_words_ids" in ignored(import_marian(opus).config.provenance["generation"], checkpoint.architecture)


def test_ids_are_renumbered_wherever_they_stand() -> None:
    decoding = {"forced_eos_token_id": [1, 7], "forced_bos_token_id": 7, "suppress_tokens": [7], "bad_words_ids": [[7]]}
    arch = tiny_architecture(pad_id=0, eos_id=1, unk_id=2, vocab_size=8)
    moved = {0: 7} | {old: old - 1 for old in range(1, 8)}
    written = exported(decoding, arch, moved)
    assert {name: written[name] for name in decoding} == {
        "forced_eos_token_id": [0, 6], "forced_bos_token_id": 6, "suppress_tokens": [6], "bad_words_ids": [[6], [7]],
    }  # fmt: skip


def test_languages_may_be_given(opus: Path) -> None:
    (opus / "tokenizer_config.json").unlink()
    config = import_marian(opus, source_language="en", target_language="de").config
    assert (config.source_language, config.target_language) == ("en", "de")


def test_a_bundle_of_it_carries_the_tokenizer_and_guards_it(opus: Path, tmp_path: Path) -> None:
    from hmc.compiler import LevelRequest, compile_bundle

    save_checkpoint(import_marian(opus), tmp_path / "c")
    compile_bundle([LevelRequest(tmp_path / "c")], tmp_path / "b", calibration=SENTENCES)
    manifest = validate(tmp_path / "b")
    assert sorted(manifest.tokenizer_files) == ["source.spm", "target.spm", "vocab.json"]
    (tmp_path / "b" / "source.spm").write_bytes(pieces_model(SENTENCES, 100))
    (tmp_path / "b" / "target.spm").unlink()
    problems = "\n".join(bundle_problems(tmp_path / "b"))
    assert "source.spm has sha256" in problems
    assert "target.spm is missing" in problems
    with changed_manifest(tmp_path / "b") as raw:
        raw["tokenizer_sha256"] = {"vocab.json": "0" * 64}
    assert "expected tokenizer.model or source.spm, target.spm, vocab.json" in "\n".join(
        bundle_problems(tmp_path / "b")
    )


@pytest.mark.parametrize("beam", [1, 4])
def test_the_engine_translates_as_pytorch_does(opus: Path, tmp_path: Path, beam: int) -> None:
    from hmc.compiler import LevelRequest, compile_bundle
    from hmc.serving import DecodeOptions, Translator
    from hmc.training import Vocabulary, beam_search, model_from_checkpoint

    checkpoint = import_marian(opus)
    save_checkpoint(checkpoint, tmp_path / "c")
    compile_bundle([LevelRequest(tmp_path / "c")], tmp_path / "b")
    vocabulary, texts = Vocabulary(checkpoint.tokenizer), [*SENTENCES, f">>deu<< {SENTENCES[0]}", "ü ☃ dog"]
    model, sources = model_from_checkpoint(checkpoint).eval(), [vocabulary.encode(t) for t in texts]
    found = beam_search(model, sources, openings=(), beam=beam, max_length=20)
    expected = [vocabulary.decode(hypotheses[0].ids) for hypotheses in found]
    with Translator(tmp_path / "b", device="cpu", threads=1) as translator:
        answers = translator.translate(
            [*texts, "", ">>nld<<"], DecodeOptions(beam_size=beam, max_length=20), segmentation="none"
        )
    assert [a.text for a in answers] == [*expected, "", ""]
    assert answers[len(SENTENCES)].source_tokens == answers[0].source_tokens + 1


def test_a_model_from_outside(data: Path, tmp_path: Path) -> None:
    from hmc.compiler import LevelRequest, compile_bundle
    from hmc.serving import Translator

    if not (data / "marian-en-de").is_dir():
        pytest.skip("HMC_DATA holds no marian-en-de")
    checkpoint = import_marian(data / "marian-en-de")
    assert checkpoint.layout.total == 72
    assert (checkpoint.architecture.vocab_size, checkpoint.architecture.pad_id) == (6001, 6000)
    save_checkpoint(checkpoint, tmp_path / "c")
    compile_bundle([LevelRequest(tmp_path / "c")], tmp_path / "b")
    with Translator(tmp_path / "b", device="cpu", threads=1) as translator:
        texts = [
            t.text
            for t in translator.translate(
                ["Two dogs run across the grass.", "A man plays the guitar."], segmentation="none"
            )
        ]
    assert texts == ["Zwei Hunde rennen über das Gras.", "Ein Mann spielt Gitarre."]
