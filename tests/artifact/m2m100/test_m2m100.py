"""M2M100 and NLLB models, written by Transformers, translate alike: equal ids, greedy and with a beam of 4."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.artifact.m2m100.m2m100_writer import (
    NLLB_CODES,
    random_model,
    sources,
    transformers,
    write_m2m100,
    write_nllb,
)

from hmc.artifact import (
    InvalidArtifactError,
    InvalidRequestError,
    checkpoint_problems,
    load_checkpoint,
    save_checkpoint,
)
from hmc.artifact.m2m100.reader import import_m2m100
from hmc.artifact.m2m100.tokenizer_files import OF_M2M100, OF_NLLB
from hmc.artifact.marian.writer import export_marian
from hmc.artifact.model.architecture import fairseq_positions
from hmc.artifact.tokenizer.files import MarianFiles
from hmc.artifact.tokenizer.tokenizer import open_tokenizer
from hmc.pipelines.importing import import_model

LIMIT = 24
pytestmark = pytest.mark.filterwarnings("ignore")  # what other libraries warn of is not ours to fix


@pytest.fixture(scope="module", params=["m2m100", "nllb"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    folder = tmp_path_factory.mktemp(request.param) / "model"
    return (folder, *(write_m2m100 if request.param == "m2m100" else write_nllb)(folder))


@pytest.fixture(scope="module")
def bundle(written: tuple[Path, Any, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    from hmc.compiler import LevelRequest, compile_bundle

    out = tmp_path_factory.mktemp("compiled")
    save_checkpoint(import_model(written[0]), out / "checkpoint")
    assert checkpoint_problems(out / "checkpoint") == []
    compile_bundle([LevelRequest(out / "checkpoint")], out / "bundle")
    return out / "bundle"


def expected_ids(model: Any, tokenizer: Any, texts: list[str], beam: int, target: str) -> list[list[int]]:
    """What Transformers generates: ids with the language first, EOS last where the model ends."""
    forced = tokenizer.convert_tokens_to_ids(target)
    found = []
    for start in range(0, len(texts), 50):
        batch = tokenizer(texts[start : start + 50], return_tensors="pt", padding=True)
        with torch.no_grad():
            generated = model.generate(
                **batch, num_beams=beam, max_length=LIMIT + 1, forced_bos_token_id=forced, do_sample=False
            )
        for row in generated.tolist():
            ids = row[1:]
            while ids and ids[-1] == tokenizer.pad_token_id:
                ids.pop()
            found.append(ids)
    return found


def text_of(tokenizer: Any, ids: list[int]) -> str:
    """The text of target ids. M2M100's tokenizer, read from a directory, writes tokens that are no text into it."""
    if hasattr(tokenizer, "encoder_size"):
        ids = [i for i in ids if i < tokenizer.encoder_size]
    return str(tokenizer.decode(ids, skip_special_tokens=True)).strip()


@pytest.mark.slow
@pytest.mark.parametrize("beam", [1, 4])
def test_two_hundred_inputs_give_equal_ids(written: tuple[Path, Any, Any], bundle: Path, beam: int) -> None:
    from hmc.serving import DecodeOptions, Translator

    folder, model, tokenizer = written
    texts = sources(200)
    own = open_tokenizer(load_checkpoint(bundle.parent / "checkpoint").tokenizer)
    assert [[*own.encode(text), own.eos_id] for text in texts] == [tokenizer(text)["input_ids"] for text in texts]
    target = "__de__" if (folder / "vocab.json").is_file() else "deu_Latn"
    expected = expected_ids(model, tokenizer, texts, beam, target)
    options = DecodeOptions(beam_size=beam, max_length=LIMIT, token_scores=True)
    with Translator(bundle, level="full", device="cpu", threads=1) as translator:
        answers = translator.translate(texts, options, segmentation="none")
    assert [[own.find(token.piece) for token in answer.tokens] for answer in answers] == expected
    assert [answer.text for answer in answers] == [text_of(tokenizer, ids) for ids in expected]
    assert all(answer.tokens[0].score == 0 for answer in answers)
    assert len({tuple(ids) for ids in expected}) > 100


def test_a_text_may_name_its_target_language(written: tuple[Path, Any, Any], bundle: Path) -> None:
    from hmc.serving import DecodeOptions, Translator

    folder, model, tokenizer = written
    m2m100 = (folder / "vocab.json").is_file()
    code, token = ("fr", "__fr__") if m2m100 else ("fra_Latn", "fra_Latn")
    texts = sources(12)
    expected = expected_ids(model, tokenizer, texts, 4, token)
    own = open_tokenizer(load_checkpoint(bundle.parent / "checkpoint").tokenizer)
    with Translator(bundle, level="full", device="cpu", threads=1) as translator:
        options = DecodeOptions(beam_size=4, max_length=LIMIT, token_scores=True)
        answers = translator.translate([f">>{code}<< {text}" for text in texts], options, segmentation="none")
        assert [[own.find(token.piece) for token in answer.tokens] for answer in answers] == expected
        scored = translator.score([f">>{code}<< {texts[5]}"], [answers[5].text], options)
        assert scored[0].tokens[0] == answers[5].tokens[0]
        with pytest.raises(InvalidRequestError, match=">>xx<<"):
            translator.translate([">>xx<< A dog."], segmentation="none")


def test_the_server_chooses_by_language(bundle: Path) -> None:
    from hmc.serving.client import Client
    from hmc.serving.server.background import BackgroundServer
    from hmc.serving.server.settings import ServerSettings

    with BackgroundServer(bundle, ServerSettings(port=0, device="cpu")) as server, Client(server.address) as client:
        client.wait_ready()
        texts = sources(4)
        plain, german, french = (
            [t.text for t in client.translate(texts, "full", target_language=language)]
            for language in (None, "de", "fr")
        )
    assert plain == german
    assert french != german


def test_pytorch_computes_the_same(written: tuple[Path, Any, Any]) -> None:
    from hmc.training import Vocabulary, model_from_checkpoint, translate

    folder, model, tokenizer = written
    checkpoint = import_model(folder)
    vocabulary = Vocabulary(checkpoint.tokenizer)
    texts = sources(20)
    source, target = vocabulary.encode_pair(texts[3], texts[4])
    batch = tokenizer(texts[3], return_tensors="pt")
    assert batch["input_ids"][0].tolist() == source
    target_in = torch.tensor([[checkpoint.architecture.decoder_start, *target[:-1]]])
    ours = model_from_checkpoint(checkpoint).eval()
    with torch.no_grad():
        expected = model(**batch, decoder_input_ids=target_in).logits
        found = ours.logits(ours(batch["input_ids"], target_in))
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=0, atol=1e-4)
    ids = expected_ids(model, tokenizer, texts, 4, tokenizer.convert_ids_to_tokens(target[0]))
    short = [ids[n] for n in range(len(texts)) if len(ids[n]) < LIMIT]  # longer ones end at another limit
    translations = translate(ours, vocabulary, texts)
    for number, row in enumerate(ids):
        if row in short:
            assert translations[number] == text_of(tokenizer, row)


def test_positions_are_those_of_transformers() -> None:
    from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding

    table = M2M100SinusoidalPositionalEmbedding(300, 64, 1).weights.numpy()
    np.testing.assert_allclose(fairseq_positions(300, 64), table[2:302], rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", ["1GB", "50KB"], ids=["one file", "sharded"])
def test_every_form_of_weights(tmp_path: Path, size: str) -> None:
    model, _ = write_m2m100(tmp_path / "model", max_shard_size=size)
    before = import_m2m100(tmp_path / "model")
    for file in (tmp_path / "model").glob("*.safetensors*"):
        file.unlink()
    torch.save(model.state_dict(), tmp_path / "model" / "pytorch_model.bin")
    after = import_model(tmp_path / "model")
    assert all(np.array_equal(before.tensors[name], after.tensors[name]) for name in before.tensors)


def test_languages_may_be_given(tmp_path: Path) -> None:
    write_nllb(tmp_path / "model")
    checkpoint = import_model(tmp_path / "model", source_language="deu", target_language="eng_Latn")
    assert isinstance(checkpoint.tokenizer, MarianFiles)
    assert checkpoint.tokenizer.languages is not None
    languages = json.loads(checkpoint.tokenizer.languages)
    assert (languages["source"], languages["target"]) == ("deu_Latn", "eng_Latn")
    with pytest.raises(InvalidArtifactError, match=r"target language 'xx' is not one of the model's 4 \(ace_Arab"):
        import_model(tmp_path / "model", target_language="xx")


def test_missing_files_are_named(tmp_path: Path) -> None:
    write_m2m100(tmp_path / "model")
    raw = json.loads((tmp_path / "model" / "config.json").read_text())
    changed = raw | {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    (tmp_path / "model" / "config.json").write_text(json.dumps(changed))
    (tmp_path / "model" / "sentencepiece.bpe.model").unlink()
    with pytest.raises(InvalidArtifactError) as caught:
        import_model(tmp_path / "model")
    assert "sentencepiece.bpe.model is missing" in str(caught.value)
    assert "has shape [48, 64], config.json says [32, 64]" in str(caught.value)


@pytest.mark.parametrize("name", ["generation_config.json", "tokenizer_config.json", "added_tokens.json"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    write_m2m100(tmp_path / "model")
    (tmp_path / "model" / name).write_text('{"num_beams": ')
    with pytest.raises(InvalidArtifactError, match=f"{name} is not JSON"):
        import_model(tmp_path / "model", source_language="en", target_language="de")


def changed(file: Path, **fields: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


@pytest.mark.parametrize(
    ("file", "fields", "said"),
    [
        ("generation_config.json", {"decoder_start_token_id": 0}, "decoder_start_token_id is 0, and in config.json 2"),
        ("generation_config.json", {"eos_token_id": [2, 20]}, r"eos_token_id is \[2, 20\], and in config.json 2"),
        ("generation_config.json", {"forced_bos_token_id": "fra_Latn"}, "is the token of fra_Latn, and .* deu_Latn"),
        ("config.json", {"decoder_start_token_id": 1}, "decoder_start_token_id must not be pad"),
        (
            "tokenizer_config.json",
            {"legacy_behaviour": True},
            "legacy_behaviour, .* is not supported",
        ),
        ("tokenizer_config.json", {"tokenizer_class": "SMALL100Tokenizer"}, "tokenizer_class SMALL100Tokenizer"),
    ],
)
def test_what_would_change_translations_is_refused(
    tmp_path: Path, file: str, fields: dict[str, Any], said: str
) -> None:
    _, tokenizer = write_nllb(tmp_path / "model")
    if "forced_bos_token_id" in fields:
        fields = {"forced_bos_token_id": tokenizer.convert_tokens_to_ids("fra_Latn")}
    changed(tmp_path / "model" / file, **fields)
    with pytest.raises(InvalidArtifactError, match=said):
        import_model(tmp_path / "model")
    if "forced_bos_token_id" in fields:  # then the caller has chosen
        assert import_model(tmp_path / "model", target_language="deu_Latn").config.target_language == "deu_Latn"


@pytest.mark.parametrize("write", [write_m2m100, write_nllb])
def test_tokens_that_were_added_to_the_tokenizer_are_refused(tmp_path: Path, write: Any) -> None:
    model, tokenizer = write(tmp_path / "model")
    tokenizer.add_tokens(["<formal>"])
    model.resize_token_embeddings(max(len(tokenizer), model.config.vocab_size) + 1)
    for made in (model, tokenizer):
        made.save_pretrained(tmp_path / "model")
    with pytest.raises(InvalidArtifactError, match="added to the tokenizer are not supported: <formal>"):
        import_model(tmp_path / "model")


@pytest.mark.parametrize("file", ["special_tokens_map.json", "tokenizer_config.json"])
@pytest.mark.parametrize(
    "fields", [{"extra_special_tokens": ["__en__", "__de__", "<brand>"]}, {"cls_token": "<brand>"}]
)
def test_special_tokens_that_are_no_languages_are_refused(tmp_path: Path, file: str, fields: dict[str, object]) -> None:
    write_m2m100(tmp_path / "model")
    changed(tmp_path / "model" / "tokenizer_config.json", extra_special_tokens=[], added_tokens_decoder={})
    if file == "special_tokens_map.json":
        (tmp_path / "model" / file).write_text(json.dumps(fields))
    else:
        changed(tmp_path / "model" / file, **fields)
    with pytest.raises(
        InvalidArtifactError, match="tokens that were added to the tokenizer are not supported: <brand>"
    ):
        import_model(tmp_path / "model", source_language="en", target_language="de")


def test_ids_of_languages_are_those_that_the_folder_states(tmp_path: Path) -> None:
    """Also without tokenizer.json, as slow tokenizers write."""
    folder = tmp_path / "model"
    _, tokenizer = write_nllb(folder)
    (folder / "tokenizer.json").unlink()
    first = min(tokenizer.convert_tokens_to_ids(NLLB_CODES))
    stated = {str(first + 3 - n): {"content": code, "special": True} for n, code in enumerate(NLLB_CODES)}
    changed(folder / "tokenizer_config.json", added_tokens_decoder=stated, additional_special_tokens=NLLB_CODES)
    read = import_model(folder).tokenizer
    assert isinstance(read, MarianFiles)
    assert read.languages is not None
    assert json.loads(read.languages)["codes"] == {code: first + 3 - n for n, code in enumerate(NLLB_CODES)}


def codes_of(folder: Path) -> dict[str, int]:
    read = import_model(folder, source_language="en", target_language="de").tokenizer
    assert isinstance(read, MarianFiles)
    assert read.languages is not None
    codes: dict[str, int] = json.loads(read.languages)["codes"]
    return codes


def family(kind: str) -> list[str]:
    return [f"__{code}__" for code in OF_M2M100[kind].split()]


@pytest.mark.parametrize(
    "listed",
    [["__en__", "__de__"], family("m2m100")[::-1], ["__szl__"], [*family("m2m100"), "__szl__"], ["__szl__", "__en__"]],
    ids=["two", "reversed", "one more alone", "one more", "one more first"],
)
@pytest.mark.parametrize("stated", [False, True], ids=["listed", "with ids"])
def test_the_order_of_m2m100s_languages_is_fixed(tmp_path: Path, listed: list[str], stated: bool) -> None:
    """Whatever a directory lists; added languages have the ids that they have in Transformers."""
    folder = tmp_path / "model"
    write_m2m100(folder)
    changed(folder / "tokenizer_config.json", added_tokens_decoder={}, extra_special_tokens=listed)
    if stated:
        transformers.M2M100Tokenizer.from_pretrained(folder).save_pretrained(folder)
    theirs = transformers.M2M100Tokenizer.from_pretrained(folder)
    codes = codes_of(folder)
    added = {"szl"} & codes.keys()
    assert {code: codes[code] for code in codes.keys() - added} == theirs.lang_code_to_id
    assert all(codes[code] == theirs.convert_tokens_to_ids(f"__{code}__") for code in added)
    assert bool(added) == ("__szl__" in listed)
    assert (codes["en"], codes["de"]) == (168, 166)


@pytest.mark.parametrize("special", [False, True])
def test_a_folder_with_an_added_language_is_imported(tmp_path: Path, special: bool) -> None:
    """Transformers may give it the id of another language, and reads it again so."""
    folder = tmp_path / "model"
    _, tokenizer = write_m2m100(folder)
    tokenizer.add_tokens(["__szl__"], special_tokens=special)
    tokenizer.save_pretrained(folder)
    codes = codes_of(folder)
    assert codes["szl"] == tokenizer.convert_tokens_to_ids("__szl__")
    assert (codes["en"], codes["de"], len(codes)) == (168, 166, 101)
    files = import_model(folder, target_language="szl").tokenizer
    assert open_tokenizer(files).opening("A dog.") == [codes["szl"]]
    assert open_tokenizer(files).encode("A dog.") == tokenizer("A dog.")["input_ids"][:-1]


def test_a_model_that_is_too_small_for_its_family_is_refused_with_the_list(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_m2m100(folder)
    random_model(152, 0).save_pretrained(folder)
    changed(folder / "tokenizer_config.json", extra_special_tokens=["__en__", "__de__"])
    said = "languages of m2m100 have the ids 150 to 249 .* lists __en__, __de__; the model.s vocabulary has 152 tokens"
    with pytest.raises(InvalidArtifactError, match=said):
        codes_of(folder)


def listed_alone(folder: Path, listed: list[str]) -> None:
    """Leaves no file with ids, as tokenizers without tokenizer.json were saved once."""
    (folder / "tokenizer.json").unlink()
    changed(folder / "tokenizer_config.json", added_tokens_decoder={}, extra_special_tokens=listed)


def test_a_language_that_was_added_is_one_more(tmp_path: Path) -> None:
    """added_tokens.json has the new one alone; the others are NLLB's in their order."""
    folder = tmp_path / "model"
    _, tokenizer = write_nllb(folder)
    every = OF_NLLB.split()
    listed_alone(folder, every)
    pieces = tokenizer.convert_tokens_to_ids("<mask>")
    new = pieces + len(every) + 1  # after <mask>
    (folder / "added_tokens.json").write_text(json.dumps({"tyv_Cyrl": new}))
    random_model(new + 1, 0).save_pretrained(folder)
    read = import_model(folder).tokenizer
    assert isinstance(read, MarianFiles)
    assert read.languages is not None
    expected = {code: pieces + number for number, code in enumerate(every)}
    assert json.loads(read.languages)["codes"] == {**expected, "tyv_Cyrl": new}


def test_the_order_of_nllbs_languages_is_that_of_transformers() -> None:
    from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES

    assert OF_NLLB.split() == FAIRSEQ_LANGUAGE_CODES


@pytest.mark.parametrize("listed", [["eng_Latn", "deu_Latn"], NLLB_CODES, OF_NLLB.split()[::-1]])
def test_a_list_whose_ids_no_file_states_is_refused(tmp_path: Path, listed: list[str]) -> None:
    folder = tmp_path / "model"
    write_nllb(folder)
    random_model(600, 0).save_pretrained(folder)
    listed_alone(folder, listed)
    with pytest.raises(InvalidArtifactError, match=f"no file states the ids of the languages.*{', '.join(listed[:2])}"):
        import_model(folder)


def test_languages_that_a_list_adds_follow_as_in_transformers(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_nllb(folder)
    random_model(600, 0).save_pretrained(folder)
    changed(folder / "tokenizer_config.json", extra_special_tokens=[*NLLB_CODES[::-1], "tyv_Cyrl"])
    theirs = transformers.NllbTokenizer.from_pretrained(folder)
    read = import_model(folder).tokenizer
    assert isinstance(read, MarianFiles)
    assert read.languages is not None
    expected = {code: theirs.convert_tokens_to_ids(code) for code in (*NLLB_CODES, "tyv_Cyrl")}
    assert json.loads(read.languages)["codes"] == expected


def test_ids_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_nllb(folder)
    changed(folder / "tokenizer_config.json", added_tokens_decoder={"400": {"content": "deu_Latn"}})
    with pytest.raises(
        InvalidArtifactError, match=r"tokenizer.json gives deu_Latn the id \d+, .* another file says 400"
    ):
        import_model(folder)


def test_it_cannot_be_exported_as_marian(tmp_path: Path) -> None:
    write_m2m100(tmp_path / "model")
    with pytest.raises(InvalidRequestError, match="layers normalise before attention, and Transformers' MarianMTModel"):
        export_marian(import_model(tmp_path / "model"), tmp_path / "out")
