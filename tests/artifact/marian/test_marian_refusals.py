"""MarianMT directories that hmc cannot express are refused, with every reason at once."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.artifact.marian.opus import edit, write_weights

from hmc.artifact import InvalidArtifactError
from hmc.artifact.marian.reader import import_marian
from hmc.artifact.model.architecture import sinusoidal_positions

CONFIG_PROBLEMS: list[tuple[dict[str, object], str]] = [
    ({"model_type": "bart", "architectures": ["BartForConditionalGeneration"]}, "BartForConditionalGeneration"),
    ({"architectures": ["MarianForCausalLM"]}, "not MarianMTModel"),
    ({"share_encoder_decoder_embeddings": False}, "tensor encoder.embed_tokens.weight is missing"),
    ({"share_encoder_decoder_embeddings": 1}, "share_encoder_decoder_embeddings: Input should be a valid boolean"),
    ({"tie_word_embeddings": False}, "must be the embedding matrix"),
    ({"static_position_embeddings": False}, "positions must be sinusoids"),
    ({"normalize_before": True}, "normalise after the residual"),
    ({"activation_function": "gelu_new"}, "'gelu_new' is unknown; supported: relu, swish, silu, gelu"),
    ({"decoder_attention_heads": 8}, "encoder_attention_heads 4 and decoder_attention_heads 8 must be equal"),
    ({"decoder_ffn_dim": 96}, "encoder_ffn_dim 48 and decoder_ffn_dim 96 must be equal"),
    ({"encoder_attention_heads": 5, "decoder_attention_heads": 5}, "64 is not a multiple of 5 heads"),
    ({"decoder_vocab_size": 7}, "must be equal where share_encoder_decoder_embeddings is true"),
    ({"decoder_start_token_id": 0}, "must be the pad token"),
    ({"pad_token_id": 5, "decoder_start_token_id": 5}, "gives '<pad>' the id"),
    ({"eos_token_id": 100_000}, "eos_id 100000 is outside the vocabulary"),
    ({"vocab_size": 60, "pad_token_id": 3, "decoder_start_token_id": 3}, "the model's vocabulary has 60"),
    ({"encoder_layers": 3}, "tensor encoder.layers.2.fc1.weight is missing"),
    ({"decoder_layers": 1}, "tensor decoder.layers.1.fc1.weight does not belong"),
    ({"encoder_ffn_dim": 32, "decoder_ffn_dim": 32}, r"has shape [48, 64], config.json says [32, 64]"),
    ({"scale_embedding": None}, "scale_embedding: Field required"),
    ({"d_model": "64"}, "d_model: Input should be a valid integer"),
]


@pytest.mark.parametrize(("fields", "problem"), CONFIG_PROBLEMS, ids=[p for _, p in CONFIG_PROBLEMS])
def test_models_that_hmc_cannot_express_are_refused(opus: Path, fields: dict[str, object], problem: str) -> None:
    edit(opus / "config.json", **fields)
    with pytest.raises(InvalidArtifactError) as caught:
        import_marian(opus)
    assert problem in str(caught.value)


@pytest.mark.parametrize("fields", [{"eos_token_id": 5}, {"eos_token_id": [0, 5]}, {"decoder_start_token_id": 0}])
def test_what_transformers_would_generate_otherwise_is_refused(opus: Path, fields: dict[str, object]) -> None:
    pad = import_marian(opus).architecture.pad_id
    for harmless in ({"eos_token_id": [0]}, {"eos_token_id": [0, pad]}, {"decoder_start_token_id": [pad, pad]}):
        edit(opus / "generation_config.json", **harmless)
        import_marian(opus)
    edit(opus / "generation_config.json", **fields)
    [(name, value)] = fields.items()
    with pytest.raises(InvalidArtifactError) as caught:
        import_marian(opus)
    assert f"generation_config.json: {name} is {value}, and in config.json " in str(caught.value)


def test_the_decoder_start_may_stand_in_either_file(opus: Path) -> None:
    before = import_marian(opus)
    edit(opus / "config.json", decoder_start_token_id=None)
    without = json.loads((opus / "config.json").read_text())
    edit(opus / "generation_config.json", decoder_start_token_id=[before.architecture.pad_id])
    assert import_marian(opus).architecture == before.architecture
    (opus / "config.json").write_text(json.dumps(without | {"decoder_start_token_id": None}))
    assert import_marian(opus).architecture == before.architecture
    edit(opus / "generation_config.json", decoder_start_token_id=[[3], [3]])
    with pytest.raises(InvalidArtifactError, match="decoder_start_token_id: Input should be a valid integer"):
        import_marian(opus)


def _pickle_only(opus: Path) -> None:
    (opus / "model.safetensors").rename(opus / "pytorch_model.bin")


def _other_weights(opus: Path) -> None:
    (opus / "model.safetensors").rename(opus / "tf_model.h5")


def _learned_positions(opus: Path) -> None:
    arch = import_marian(opus).architecture
    write_weights(opus, arch, extra={"model.encoder.embed_positions.weight": np.zeros((96, 64), np.float32)})


def _another_start(opus: Path) -> None:
    """Like a decoder that starts from zeros, except that pad can be chosen."""
    arch = import_marian(opus).architecture
    positions = sinusoidal_positions(96, 64)
    positions[0] += 1.0
    write_weights(opus, arch, extra={"model.decoder.embed_positions.weight": positions})


def _untied(opus: Path) -> None:
    arch = import_marian(opus).architecture
    write_weights(opus, arch, extra={"lm_head.weight": np.ones((arch.vocab_size, 64), np.float32)})


def _nan(opus: Path) -> None:
    tensors = load_file(opus / "model.safetensors")
    tensors["model.shared.weight"] = np.full_like(tensors["model.shared.weight"], np.nan)
    save_file(tensors, opus / "model.safetensors")


FILE_PROBLEMS: list[tuple[Callable[[Path], object], str]] = [
    (_other_weights, r"tf_model\.h5 is not opened: hmc reads model.safetensors and .*; convert it.*save_pretrained"),
    (_pickle_only, r"pytorch_model\.bin is not opened here: only `hmc import` reads it, with PyTorch"),
    (_learned_positions, r"encoder\.embed_positions\.weight does not hold sinusoids"),
    (_another_start, r"decoder\.embed_positions\.weight does not hold sinusoids"),
    (_untied, r"shared\.weight and lm_head\.weight differ"),
    (_nan, r"shared\.weight holds NaN"),
    (lambda o: (o / "model.safetensors").unlink(), r"model\.safetensors is missing"),
    (lambda o: (o / "model.safetensors").write_bytes(b"x" * 40), "not readable"),
    (lambda o: (o / "config.json").unlink(), r"config\.json is missing"),
    (lambda o: (o / "config.json").write_text("[]"), r"config\.json must be one JSON object"),
    (lambda o: (o / "source.spm").unlink(), r"source\.spm is missing"),
    (lambda o: (o / "target.spm").write_bytes(b"garbage"), r"target\.spm is not a SentencePiece model"),
    (lambda o: (o / "config.json").write_text("{}"), r"config\.json describes no model of Transformers"),
    (lambda o: edit(o / "config.json", model_type=None), r"describes MarianMTModel \(model_type None\)"),
    (lambda o: (o / "vocab.json").unlink(), r"vocab\.json is missing"),
    (lambda o: edit(o / "vocab.json", **{"<pad>": None}), r"vocab\.json has no entry '<pad>'"),
    (lambda o: edit(o / "tokenizer_config.json", separate_vocabs=True), "separate_vocabs is true"),
    (lambda o: edit(o / "tokenizer_config.json", pad_token="[PAD]"), r"pad_token is '\[PAD\]'"),
    (
        lambda o: (o / "tokenizer_config.json").unlink(),
        "hmc import --source-language(.|\n)*hmc import --target-language",
    ),
]


@pytest.mark.parametrize(("damage", "problem"), FILE_PROBLEMS, ids=[p for _, p in FILE_PROBLEMS])
def test_files_that_are_missing_or_wrong(opus: Path, damage: Callable[[Path], object], problem: str) -> None:
    damage(opus)
    with pytest.raises(InvalidArtifactError, match=problem):
        import_marian(opus)


def test_all_problems_are_reported_at_once(opus: Path) -> None:
    (opus / "source.spm").unlink()
    _other_weights(opus)
    edit(opus / "config.json", decoder_ffn_dim=96, activation_function="elu")
    with pytest.raises(InvalidArtifactError) as caught:
        import_marian(opus)
    assert len(caught.value.problems) == 4
    assert "layout of OPUS-MT" in str(caught.value)


@pytest.mark.parametrize("file", ["added_tokens.json", "tokenizer_config.json"])
def test_a_token_that_was_added_is_named_with_its_file(opus: Path, file: str) -> None:
    """Transformers takes it out of a text before the text is divided."""
    size = len(json.loads((opus / "vocab.json").read_text()))
    if file == "added_tokens.json":
        (opus / file).write_text(json.dumps({"<formal>": size}))
    else:
        edit(opus / file, added_tokens_decoder={"0": {"content": "</s>"}, str(size): {"content": "<formal>"}})
    edit(opus / "config.json", vocab_size=size + 1)
    with pytest.raises(InvalidArtifactError, match=f"{file} adds <formal> to the pieces of vocab.json: added tokens"):
        import_marian(opus)


@pytest.mark.parametrize("file", ["special_tokens_map.json", "tokenizer_config.json"])
@pytest.mark.parametrize(
    "fields",
    [
        {"additional_special_tokens": ["</s>", "<formal>"]},
        {"extra_special_tokens": [{"content": "<formal>", "lstrip": False}]},
        {"extra_special_tokens": {"register": "<formal>"}},
        {"sep_token": "<formal>"},
        {"mask_token": {"content": "<formal>", "lstrip": True}},
    ],
)
def test_a_special_token_that_is_no_piece_is_named_with_its_file(
    opus: Path, file: str, fields: dict[str, object]
) -> None:
    """Transformers gives it an id beyond the vocabulary."""
    (opus / file).touch()
    raw = json.loads((opus / file).read_text() or "{}")
    (opus / file).write_text(json.dumps(raw | fields))
    with pytest.raises(InvalidArtifactError, match=f"{file} adds <formal> to the pieces of vocab.json: added tokens"):
        import_marian(opus)


@pytest.mark.parametrize("file", ["added_tokens.json", "special_tokens_map.json", "tokenizer.json"])
def test_a_file_that_may_add_tokens_is_read_or_refused(opus: Path, file: str) -> None:
    (opus / file).write_text('{"<formal>": ')
    with pytest.raises(InvalidArtifactError, match=f"{file} is not JSON"):
        import_marian(opus)


def test_stated_tokens_that_are_pieces_are_no_added_ones(opus: Path) -> None:
    edit(opus / "tokenizer_config.json", added_tokens_decoder={"0": {"content": "</s>"}, "1": {"content": "<unk>"}})
    (opus / "added_tokens.json").write_text("{}")
    named = {"eos_token": "</s>", "unk_token": {"content": "<unk>"}, "pad_token": "<pad>", "sep_token": None}
    (opus / "special_tokens_map.json").write_text(json.dumps(named))
    import_marian(opus)
