"""Marian's own models become checkpoints; damaged and hostile ones are refused with every reason."""

from __future__ import annotations

import json
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from tests.artifact.npz.marian_writer import marian_arrays, options_text, write_arrays, write_release
from tests.support.files import Hostile, write_lines
from tests.tiny import SENTENCES

from hmc.artifact import InvalidArtifactError, checkpoint_problems, save_checkpoint
from hmc.artifact.npz.reader import import_release
from hmc.artifact.npz.release import is_release
from hmc.artifact.tokenizer.files import MarianFiles
from hmc.artifact.tokenizer.tokenizer import open_tokenizer

FORMS: dict[str, dict[str, object]] = {
    "opus": {},
    "two vocabularies": {"two": True},
    "norms first": {"pre_norm": True, "stack_norms": True},
    "norms first, none last": {"pre_norm": True},
    "own output": {"own_output": True},
    "two vocabularies, own output": {"two": True, "own_output": True},
}


@pytest.fixture
def release(tmp_path: Path) -> Path:
    write_release(tmp_path / "opus")
    return tmp_path / "opus"


def zipped(folder: Path, archive: Path, inside: str = "") -> Path:
    with zipfile.ZipFile(archive, "w") as packed:
        for file in sorted(folder.iterdir()):
            packed.write(file, inside + file.name)
    return archive


@pytest.mark.parametrize("form", FORMS)
def test_every_tensor_and_number_is_the_model_s(tmp_path: Path, form: str) -> None:
    arch, tensors = write_release(tmp_path / "opus", **FORMS[form])  # type: ignore[arg-type]
    assert is_release(tmp_path / "opus")
    checkpoint = import_release(tmp_path / "opus")
    assert checkpoint.architecture == arch
    assert checkpoint.tensors.keys() == tensors.keys()
    assert [n for n in tensors if not np.array_equal(checkpoint.tensors[n], tensors[n])] == []
    assert (checkpoint.config.source_language, checkpoint.config.target_language) == ("eng", "mul")
    assert checkpoint.config.provenance["generation"] == {"num_beams": 6, "length_penalty": 0.6}
    save_checkpoint(checkpoint, tmp_path / "c")
    assert checkpoint_problems(tmp_path / "c") == []


def test_codes_of_target_languages_are_known(release: Path) -> None:
    tokenizer = open_tokenizer(import_release(release).tokenizer)
    ids = tokenizer.encode(f">>deu<< {SENTENCES[0]}")
    assert tokenizer.source_piece(ids[0]) == ">>deu<<"
    assert ids[1:] == tokenizer.encode(SENTENCES[0])


@pytest.mark.parametrize("inside", ["", "opus-2020-01-01/"])
def test_a_zip_archive_is_its_folder(release: Path, tmp_path: Path, inside: str) -> None:
    folder, packed = import_release(release), import_release(zipped(release, tmp_path / "opus.zip", inside))
    assert packed.tokenizer == folder.tokenizer
    assert packed.architecture == folder.architecture
    assert all(np.array_equal(packed.tensors[name], folder.tensors[name]) for name in folder.tensors)


def test_the_file_of_weights_names_its_folder(release: Path) -> None:
    assert import_release(release / "opus.npz").architecture == import_release(release).architecture


def test_without_decoder_yml_the_only_files_count(release: Path) -> None:
    (release / "decoder.yml").unlink()
    checkpoint = import_release(release, source_language="en", target_language="de")
    assert (checkpoint.config.target_language, checkpoint.config.provenance["generation"]) == ("de", {})


def test_names_that_do_not_tell_the_source_are_not_guessed(tmp_path: Path) -> None:
    """`vocab.de` would come before `vocab.en`, and sides of equal size could be swapped without a sign."""
    folder = tmp_path / "opus"
    write_release(folder, two=True)
    (folder / "decoder.yml").unlink()
    for file, name in zip(sorted(folder.glob("*.vocab.yml")), ("vocab.de.yml", "vocab.en.yml"), strict=True):
        file.rename(folder / name)
    with pytest.raises(InvalidArtifactError, match=r"vocabs: \[SOURCE, TARGET\]"):
        import_release(folder)


def test_a_vocabulary_of_sentencepiece_is_read_too(release: Path) -> None:
    """Marian trained with `--vocabs vocab.spm vocab.spm` takes ids from the SentencePiece model."""
    from tests.artifact.marian.opus import pieces_of

    model = (release / "source.spm").read_bytes()
    for name in ("decoder.yml", "opus.vocab.yml", "source.spm", "target.spm"):
        (release / name).unlink()
    (release / "vocab.spm").write_bytes(model)
    with np.load(release / "opus.npz") as stored:
        arrays = {name: stored[name] for name in stored.files if name != "special:model.yml"}
        text = stored["special:model.yml"].tobytes()[:-1].decode()
    size = len(pieces_of(model))
    arrays["Wemb"], arrays["decoder_ff_logit_out_b"] = arrays["Wemb"][:size], arrays["decoder_ff_logit_out_b"][:, :size]
    write_arrays(release / "opus.npz", arrays, text)
    checkpoint = import_release(release)
    assert checkpoint.architecture.vocab_size == size + 1
    assert open_tokenizer(checkpoint.tokenizer).piece(5) == pieces_of(model)[5]


def test_words_that_mean_something_in_yaml_stay_words(release: Path) -> None:
    vocabulary = (release / "opus.vocab.yml").read_text(encoding="utf-8").splitlines()
    for line, word in (
        (9, "yes"),
        (10, "null"),
        (11, "1:30"),
        (12, "'~'"),
        (13, '"\\x85"'),
        (14, '"\\""'),
        (15, "0x1F"),
    ):
        vocabulary[line] = f"{word}: {line}"
    write_lines(release / "opus.vocab.yml", vocabulary)
    tokenizer = open_tokenizer(import_release(release).tokenizer)
    assert [tokenizer.piece(i) for i in range(9, 16)] == ["yes", "null", "1:30", "~", "\x85", '"', "0x1F"]


def _arrays(folder: Path, change: Callable[[dict[str, np.ndarray]], object], **options: str) -> None:
    """Writes the weights anew, with changes."""
    arch, tensors = write_release(folder.parent / "other")
    arrays = marian_arrays(tensors, arch)
    change(arrays)
    write_arrays(folder / "opus.npz", arrays, options_text(arch, **options))


def _compressed_and_damaged(file: Path) -> None:
    np.savez_compressed(file, x=np.arange(10_000))
    content = bytearray(file.read_bytes())
    content[200:260] = bytes(60)
    file.write_bytes(content)


def _of_an_earlier_marian(folder: Path) -> None:
    """With norms first, before Marian had transformer-postprocess-top."""
    arch, tensors = write_release(folder.parent / "other", pre_norm=True)
    lines = options_text(arch).splitlines(keepends=True)
    options = "".join(line for line in lines if not line.startswith("transformer-postprocess-top"))
    write_arrays(folder / "opus.npz", marian_arrays(tensors, arch), options)


def _option(**options: str) -> Callable[[Path], None]:
    return lambda folder: _arrays(folder, lambda _: None, **{n.replace("_", "-"): v for n, v in options.items()})


DAMAGE: list[tuple[Callable[[Path], object], str]] = [
    (_option(type="s2s"), "type is 's2s': only Transformers"),
    (_option(transformer_decoder_autoreg="rnn"), "transformer-decoder-autoreg is 'rnn'"),
    (_option(transformer_ffn_activation="gelu"), "'gelu' is not supported; supported: relu, swish"),
    (_option(transformer_postprocess="dna"), "transformer-postprocess 'dna' is not supported; supported"),
    (_option(transformer_postprocess_emb="dn"), "a norm of embeddings is not supported"),
    (_option(transformer_postprocess_top="a"), "transformer-postprocess-top 'a' is not supported"),
    (_option(transformer_train_position_embeddings="true"), "positions must be sinusoids"),
    (_option(transformer_disable_position_embeddings="true"), "disable-position-embeddings is 'true': positions must"),
    (_option(right_left="true"), "right-left is 'true': sentences that are written backwards"),
    (_option(enc_depth="three"), "enc-depth must be a whole number, and is 'three'"),
    (_option(transformer_heads="5"), "dim-emb 64 is not a multiple of transformer-heads 5"),
    (_option(transformer_tied_layers="\n  - 1\n  - 1"), "layers that share weights are not supported"),
    (_option(transformer_dim_ffn="32"), r"encoder_l1_ffn_W1 has shape \[48, 64\], expected \[32, 64\]"),
    (
        _option(transformer_preprocess="n", transformer_postprocess="da", transformer_postprocess_top="''"),
        "encoder_l1_self_Wo_ln_scale_pre is missing",
    ),
    (_of_an_earlier_marian, r"Marian before 1\.10 did not normalise keys"),
    (lambda o: _arrays(o, lambda a: a.update(Wx=np.array(["a"]))), "Wx is no array of numbers"),
    (lambda o: _compressed_and_damaged(o / "opus.npz"), r"opus\.npz is not readable as arrays"),
    (lambda o: _arrays(o, lambda a: a.pop("decoder_l2_context_Wq")), "decoder_l2_context_Wq is missing"),
    (lambda o: _arrays(o, lambda a: a.update(Wpos=np.zeros((4, 64)))), "Wpos does not belong to this model"),
    (lambda o: _arrays(o, lambda a: a.pop("Wemb")), "Wemb is missing, and so is encoder_Wemb or decoder_Wemb"),
    (lambda o: _arrays(o, lambda a: a.update(Wemb=a["Wemb"] * np.nan)), r"shared\.weight holds NaN"),
    (lambda o: np.savez(o / "opus.npz", x=np.zeros(3)), r"special:model\.yml is not in the file"),
    (lambda o: (o / "opus.npz").write_bytes(b"x" * 50), r"opus\.npz is not readable as arrays"),
    (lambda o: (o / "opus.npz").unlink(), r"opus\.npz is missing, and decoder\.yml names it"),
    (
        lambda o: (o / "decoder.yml").write_text("models:\n  - a.npz\n  - b.npz\n"),
        "names 2 models that decode together",
    ),
    (lambda o: (o / "decoder.yml").write_text("models: [\n"), r"decoder\.yml is not YAML \(line"),
    (lambda o: (o / "opus.vocab.yml").write_text("</s>: 0\n<unk>: 1\n"), "has 2 entries, the model's vocabulary has"),
    (lambda o: (o / "opus.vocab.yml").write_text("</s>: 0\n</s>: 1\n"), "line 2: '</s>' is given twice"),
    (lambda o: (o / "opus.vocab.yml").write_text("a: 0\n<unk>: 1\n"), "has no entry '</s>'"),
    (lambda o: (o / "opus.vocab.yml").write_text("</s>: 0\n<unk>: 1\n<pad>: 2\n"), "has an entry '<pad>'"),
    (lambda o: (o / "opus.vocab.yml").write_text("</s>: 0\n<unk>: 2\n"), "must be 0 to 1, each once"),
    (
        lambda o: (o / "opus.vocab.yml").write_text("</s>: !!python/object:os.system x\n"),
        "has no id: it must be a mapping",
    ),
    (lambda o: (o / "opus.vocab.yml").write_text("- 1\n"), "must be one mapping of YAML"),
    (lambda o: (o / "opus.vocab.yml").write_text("a: &x [*x]\n"), r"line 1: an alias \(\*x\)"),
    (lambda o: (o / "source.spm").rename(o / "source.bpe"), r"source\.spm is missing; source\.bpe is of another"),
    (lambda o: (o / "target.spm").write_bytes(b"x"), r"target\.spm is not a SentencePiece model"),
    (lambda o: (o / "README.md").unlink(), "hmc import --source-language(.|\n)*hmc import --target-language"),
]


@pytest.mark.parametrize(("damage", "problem"), DAMAGE, ids=[p for _, p in DAMAGE])
def test_models_that_cannot_be_imported(release: Path, damage: Callable[[Path], object], problem: str) -> None:
    damage(release)
    with pytest.raises(InvalidArtifactError, match=problem):
        import_release(release)


def test_objects_in_arrays_run_nothing(release: Path, tmp_path: Path) -> None:
    np.savez(release / "opus.npz", Wemb=np.array([Hostile(tmp_path / "ran")], dtype=object))
    with pytest.raises(InvalidArtifactError, match=r"opus\.npz is not readable as arrays: Object arrays"):
        import_release(release)
    assert not (tmp_path / "ran").exists()


def test_an_archive_writes_nowhere_else(tmp_path: Path) -> None:
    for name in ("../outside.txt", "/outside.txt", "a/../../outside.txt", "..\\outside.txt", "C:/outside.txt"):
        archive = tmp_path / "bad.zip"
        with zipfile.ZipFile(archive, "w") as packed:
            packed.writestr("decoder.yml", "models:\n")
            packed.writestr(name, "x")
        with pytest.raises(InvalidArtifactError, match="would be written outside the folder"):
            import_release(archive)
    assert [path.name for path in tmp_path.iterdir()] == ["bad.zip"]


def test_links_in_an_archive_are_refused(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("opus.npz")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as packed:
        packed.writestr(link, "/etc/passwd")
    with pytest.raises(InvalidArtifactError, match=r"'opus\.npz' is a link"):
        import_release(tmp_path / "bad.zip")


def test_an_archive_that_would_fill_the_disk_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("opus.npz", bytes(65 * 2**20))
    with pytest.raises(InvalidArtifactError, match=r"'opus\.npz' would grow from .* to 68,157,440 bytes"):
        import_release(tmp_path / "bomb.zip")
    (tmp_path / "opus").mkdir()
    (tmp_path / "bomb.zip").rename(tmp_path / "opus" / "opus.npz")
    with pytest.raises(InvalidArtifactError, match="would grow from"):
        import_release(tmp_path / "opus")


def test_damaged_archives(release: Path, tmp_path: Path) -> None:
    whole = zipped(release, tmp_path / "opus.zip").read_bytes()
    (tmp_path / "short.zip").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidArtifactError, match="it is no whole zip archive"):
        import_release(tmp_path / "short.zip")
    at = whole.index(b"Wemb")
    (tmp_path / "changed.zip").write_bytes(whole[: at + 2000] + b"#" * 50 + whole[at + 2050 :])
    with pytest.raises(InvalidArtifactError, match="it is no whole zip archive: Bad CRC-32"):
        import_release(tmp_path / "changed.zip")


CONTROLS = [*(code for code in range(1, 0x20) if code not in b"\t\n\r"), *range(0x7F, 0xA1)]
ODD = [*map(chr, CONTROLS), "\u2028", "\u2029", "\ufeff", "\ufffe", "\uffff"]
"""Pieces that PyYAML refuses, drops or takes for ends of lines. Published vocabularies hold some of them."""


def vocabulary_of(folder: Path) -> dict[str, int]:
    files = import_release(folder).tokenizer
    assert isinstance(files, MarianFiles)
    entries: dict[str, int] = json.loads(files.vocabulary)
    return entries


@pytest.mark.parametrize("quote", ['"', ""], ids=["quoted", "plain"])
@pytest.mark.parametrize("within", ["{}", "a{}b"], ids=["alone", "within a word"])
def test_control_characters_in_yaml_are_pieces(release: Path, quote: str, within: str) -> None:
    file = release / "opus.vocab.yml"
    lines = file.read_text(encoding="utf-8").split("\n")
    for number, character in enumerate(ODD):
        lines[20 + number] = f"{quote}{within.format(character)}{quote}: {20 + number}"
    file.write_text("\n".join(lines), encoding="utf-8")
    entries = vocabulary_of(release)
    assert {within.format(character): 20 + number for number, character in enumerate(ODD)}.items() <= entries.items()


def test_characters_that_stand_in_for_others_are_refused(release: Path) -> None:
    file = release / "opus.vocab.yml"
    file.write_text(file.read_text(encoding="utf-8").replace('"▁a"', '"\U0010fffd"'), encoding="utf-8")
    with pytest.raises(InvalidArtifactError, match="characters of the last plane for private use"):
        import_release(release)


def as_plain_text(release: Path) -> list[Path]:
    """Writes the vocabularies with a piece a line, as Marian reads every file that is not YAML by its name."""
    written = []
    for file in sorted(release.glob("*.vocab.yml")):
        entries = yaml.safe_load(file.read_text(encoding="utf-8"))
        plain = file.with_suffix("")
        plain.write_text("".join(f"{piece}\n" for piece in sorted(entries, key=entries.get)), encoding="utf-8")
        file.unlink()
        written.append(plain)
    decoder = release / "decoder.yml"
    decoder.write_text(decoder.read_text().replace(".vocab.yml", ".vocab"))
    return written


@pytest.mark.parametrize("two", [False, True])
@pytest.mark.parametrize("decoder", [False, True])
def test_a_vocabulary_of_plain_text_is_read_too(tmp_path: Path, two: bool, decoder: bool) -> None:
    write_release(tmp_path / "model", two=two)
    before = import_release(tmp_path / "model")
    as_plain_text(tmp_path / "model")
    if not decoder:
        (tmp_path / "model" / "decoder.yml").unlink()
    after = import_release(tmp_path / "model")
    assert before.tokenizer == after.tokenizer
    assert all(np.array_equal(before.tensors[name], after.tensors[name]) for name in before.tensors)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            lambda text: text.replace("\n", "\t-3.25\n"),
            "line 1: a piece with a score, as SentencePiece lists its model",
        ),
        (lambda text: '"</s>": 0\n' + text, r"line 1: YAML, .* let it end in \.yml"),
        (lambda text: text + "\n", "empty, and every line of a plain-text vocabulary is a piece"),
        (lambda text: text + "</s>\n", "'</s>' is also in line 1"),
        (lambda text: text + "more\n", "has 166 entries, the model's vocabulary has 165"),
        (lambda text: text.removeprefix("</s>\n"), "has no entry '</s>'"),
    ],
)
def test_plain_text_that_is_no_vocabulary(release: Path, changed: Callable[[str], str], said: str) -> None:
    (file,) = as_plain_text(release)
    file.write_text(changed(file.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(InvalidArtifactError, match=said):
        import_release(release)


def test_the_vocabulary_is_written_as_json(release: Path) -> None:
    checkpoint = import_release(release)
    assert isinstance(checkpoint.tokenizer, MarianFiles)
    entries = json.loads(checkpoint.tokenizer.vocabulary)
    assert entries["<pad>"] == checkpoint.architecture.pad_id == len(entries) - 1
