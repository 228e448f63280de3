"""Makes the parts that a recipe describes: vocabulary, corpus, architecture, head layout and model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

from hmc.artifact.checkpoint import checkpoint
from hmc.artifact.checkpoint.checkpoint import Checkpoint, load_checkpoint, load_config, read_layout
from hmc.artifact.checkpoint.weights import Tensors
from hmc.artifact.errors import InvalidArtifactError, InvalidRequestError
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.model.heads import BLIND, HeadLayout
from hmc.artifact.storage.files import write_digests, write_whole
from hmc.artifact.tokenizer.files import EVERY, TokenizerFiles, read_tokenizer, write_tokenizer
from hmc.training.data.corpus import Splitting, TokenCorpus
from hmc.training.data.parallel_text import read_pairs
from hmc.training.data.vocabulary import Vocabulary
from hmc.training.distillation.teacher import teacher_path
from hmc.training.headmask.spec import HeadMaskSpec
from hmc.training.model.checkpoints import deepened, import_tensors
from hmc.training.model.transformer import Transformer, build_transformer
from hmc.training.runs.folder import KEPT
from hmc.training.runs.recipe import Recipe, RunSection, TrainSection
from hmc.training.section import Section

CURRENT = "current.json"
"""File in the cache: the name of the folder with the tokens of this run."""


def settled(recipe: Recipe) -> Recipe:
    """Returns the recipe, completed by its start checkpoint with the languages and sizes that the recipe leaves out.

    Raises InvalidRequestError when two settings say one thing, InvalidArtifactError when the checkpoint cannot be read.
    """
    model = recipe.model
    tokenizer = recipe.tokenizer
    by_default = type(tokenizer).model_fields["bpe_dropout_copies"].default
    if tokenizer.bpe_dropout_copies != by_default and not tokenizer.bpe_dropout:
        raise InvalidRequestError(
            "tokenizer.bpe_dropout_copies belongs to tokenizer.bpe_dropout: set its probability, such as "
            "tokenizer.bpe_dropout=0.1, or leave tokenizer.bpe_dropout_copies out"
        )
    if model.start_from is None:
        return recipe
    start_from = Path(model.start_from)
    if tokenizer.model is not None and Path(tokenizer.model).resolve() != start_from.resolve():
        raise InvalidRequestError(
            f"model.start_from {start_from} brings its own tokenizer: leave tokenizer.model {tokenizer.model} out"
        )
    config = load_config(start_from)
    languages = {"source_language": config.source_language, "target_language": config.target_language}
    own = {name: value for name, value in config.architecture if name in type(model).model_fields}
    if config.architecture.head_dim * config.architecture.heads == config.architecture.d_model:
        del own["head_dim"]  # the default of the recipe
    data = recipe.data.model_copy(update=_left_out(recipe.data, languages))
    return recipe.model_copy(update={"data": data, "model": model.model_copy(update=_left_out(model, own))})


def _left_out(section: Section, values: Mapping[str, object]) -> dict[str, object]:
    """The values of fields that a user has not set."""
    return {name: value for name, value in values.items() if name not in section.model_fields_set}


def check_patience(train: TrainSection, run: RunSection) -> None:
    """Raises InvalidRequestError when `train.patience` counts evaluations, and the run makes none before its end."""
    if train.patience is not None and run.eval_every != "epoch" and run.eval_every >= train.steps:
        raise InvalidRequestError(
            f"train.patience {train.patience} counts dev evaluations, and run.eval_every {run.eval_every:,} makes none "
            f"before the last of the train.steps {train.steps:,}: set run.eval_every lower, or leave train.patience out"
        )


def check_schedule(train: TrainSection, run: RunSection) -> list[str]:
    """Returns warnings about steps, warm-up, cool-down and patience that contradict each other."""
    problems = []
    peak = train.warmup_steps
    if train.steps < peak:
        problems.append(
            f"train.steps {train.steps:,} end before the warm-up does (train.warmup_steps {peak:,}): the learning rate "
            f"reaches {train.steps / peak:.2g} of train.learning_rate; set train.warmup_steps to a part of train.steps"
        )
    if train.cooldown_steps and train.steps - train.cooldown_steps < min(peak, train.steps):
        problems.append(
            f"train.cooldown_steps {train.cooldown_steps:,} of train.steps {train.steps:,} begin before the warm-up "
            f"ends (train.warmup_steps {peak:,}): the learning rate never reaches train.learning_rate; together they "
            "have to be train.steps at most"
        )
    if train.cooldown_steps and train.patience is not None:
        problems.append(
            f"train.patience {train.patience} may end the run before its cool-down (train.cooldown_steps "
            f"{train.cooldown_steps:,}), which lowers the learning rate to zero: leave one of them out"
        )
    if train.patience is not None and run.eval_every != "epoch":
        best = max(1, peak // run.eval_every)  # evaluations before the first one that counts
        earliest = (best + train.patience) * run.eval_every
        if earliest >= train.steps:
            problems.append(
                f"train.patience {train.patience} ends nothing: with an evaluation every {run.eval_every:,} updates "
                f"(run.eval_every) and train.warmup_steps {peak:,} it could end the run after update {earliest:,}, and "
                f"train.steps is {train.steps:,}"
            )
    after = HeadMaskSpec.parse(train.headmask).after if train.headmask else 0
    if after >= train.steps:
        problems.append(f"train.headmask masks nothing: after={after:,} is not below train.steps {train.steps:,}")
    return problems


def check_shape(recipe: Recipe) -> None:
    """Raises InvalidRequestError when widths or lengths of the recipe contradict each other. Reads no text."""
    model = recipe.model
    longest = recipe.data.max_length
    if model.head_dim is None and model.d_model % model.heads:
        raise InvalidRequestError(
            f"model.d_model {model.d_model} is not a multiple of model.heads {model.heads}; set model.head_dim"
        )
    if longest > model.max_positions:
        raise InvalidRequestError(
            f"data.max_length {longest} is above model.max_positions {model.max_positions}: set data.max_length to "
            f"{model.max_positions} or less, or raise model.max_positions"
        )


def check_parts(recipe: Recipe, *, begins: bool) -> None:
    """Checks the checkpoints, tokenizers and layouts that a recipe names, as far as that needs no vocabulary.

    begins: whether the run begins. Otherwise the folder already has tokenizer and layout. Raises InvalidRequestError or
    InvalidArtifactError for a part that cannot be used.
    """
    model = recipe.model
    start_from = Path(model.start_from) if model.start_from else None
    for path in dict.fromkeys((start_from, teacher_path(recipe.distill, start_from))):
        if path:
            checkpoint.check_checkpoint(path)
    if not begins:
        return
    _check_size(recipe)
    layout = HeadLayout.full(model.encoder_layers, model.decoder_layers, model.heads)
    if model.layout is not None:
        layout = read_layout(Path(model.layout))
    if recipe.train.headmask is not None:
        HeadMaskSpec.parse(recipe.train.headmask).number(layout)


def _check_size(recipe: Recipe) -> None:
    """Raises InvalidRequestError when `tokenizer.vocab_size` is not the size of the tokenizer that the recipe names."""
    vocabulary = known_vocabulary(recipe)
    if vocabulary and "vocab_size" in recipe.tokenizer.model_fields_set:
        name = "model.start_from" if recipe.model.start_from else "tokenizer.model"
        if recipe.tokenizer.vocab_size != len(vocabulary):
            raise InvalidRequestError(
                f"tokenizer.vocab_size {recipe.tokenizer.vocab_size:,}: the tokenizer of {name} has "
                f"{len(vocabulary):,} tokens, and none is trained; leave tokenizer.vocab_size out"
            )


def known_vocabulary(recipe: Recipe) -> Vocabulary | None:
    """Returns the vocabulary of the checkpoint or tokenizer that a recipe names. None: one has to be trained.

    Raises InvalidArtifactError or InvalidRequestError when it cannot be used.
    """
    if recipe.model.start_from:
        return Vocabulary(read_tokenizer(Path(recipe.model.start_from)))
    return Vocabulary(_tokenizer_at(Path(recipe.tokenizer.model))) if recipe.tokenizer.model else None


def make_vocabulary(recipe: Recipe, out: Path) -> Vocabulary:
    """Returns the vocabulary of the run folder `out`.

    When the folder has no tokenizer yet, it gets one: the tokenizer of `model.start_from`, else of `tokenizer.model`,
    else a new one trained on the training text.
    """
    if has_tokenizer(out):
        return Vocabulary(read_tokenizer(out))
    vocabulary = known_vocabulary(recipe)
    if vocabulary is None:
        languages = (recipe.data.source_language, recipe.data.target_language)
        pairs = chain.from_iterable(read_pairs(corpus, languages) for corpus in recipe.data.train)
        text = chain.from_iterable(pairs)
        vocabulary = Vocabulary.train(text, recipe.tokenizer.vocab_size, recipe.train.seed)
    write_tokenizer(vocabulary.files, out)
    write_digests(out, KEPT)
    return vocabulary


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder holds the files of a tokenizer."""
    return any((folder / name).is_file() for name in EVERY)


def _tokenizer_at(path: Path) -> TokenizerFiles:
    """Reads the tokenizer of a checkpoint, or a SentencePiece model.

    Raises InvalidArtifactError for a damaged checkpoint, InvalidRequestError for a file that is no tokenizer.
    """
    if path.is_dir():
        if checkpoint.FORMAT.is_at(path) and (problems := checkpoint.checkpoint_problems(path)):
            raise InvalidArtifactError(f"checkpoint {path}", problems, checkpoint.FIX)
        return read_tokenizer(path)
    try:
        model = path.read_bytes()
        Vocabulary(model)
    except OSError as error:
        raise InvalidRequestError(f"tokenizer.model {path}: cannot be read: {error.strerror}") from error
    except InvalidArtifactError as error:
        raise InvalidRequestError(f"tokenizer.model {path}: {'; '.join(error.problems)}") from error
    return model


def make_corpus(recipe: Recipe, vocabulary: Vocabulary, cache: Path, *, first: bool = True) -> TokenCorpus:
    """Returns the tokenised training text. Raises InvalidRequestError as `TokenCorpus.build`.

    first: False in the other processes of a run, which read what the first one tokenised.
    """
    current = cache / CURRENT
    if not first:
        return TokenCorpus(cache / json.loads(current.read_text()))
    data = recipe.data
    tokenizer = recipe.tokenizer
    copies = tokenizer.bpe_dropout_copies if tokenizer.bpe_dropout else 1
    segmentation = Splitting(tokenizer.bpe_dropout, copies, recipe.train.seed)
    languages = (data.source_language, data.target_language)
    corpus = TokenCorpus.build(data.train, vocabulary, data.max_length, cache, languages, segmentation)
    write_whole(current, json.dumps(corpus.folder.name))
    return corpus


def architecture(recipe: Recipe, vocabulary: Vocabulary) -> Architecture:
    """Returns the architecture of a recipe with a vocabulary. Raises InvalidRequestError as `check_shape`."""
    model = recipe.model
    check_shape(recipe)
    same = {name: value for name, value in model if name in Architecture.model_fields}
    same["head_dim"] = model.head_dim or model.d_model // model.heads
    return Architecture(
        **same,
        vocab_size=len(vocabulary),
        source_vocab_size=vocabulary.source_size,
        pad_id=vocabulary.pad_id,
        eos_id=vocabulary.eos_id,
        unk_id=vocabulary.unk_id,
    )


def head_layout(recipe: Recipe, arch: Architecture) -> HeadLayout:
    """Returns the layout to train with: `model.layout`, or every head.

    Raises InvalidRequestError when `model.layout` does not fit the architecture.
    """
    if recipe.model.layout is None:
        return arch.full_layout()
    layout = read_layout(Path(recipe.model.layout))
    if problems := arch.layout_problems(layout):
        raise InvalidRequestError(f"model.layout {recipe.model.layout}: {'; '.join(problems)}")
    if not layout.sees_source:
        raise InvalidRequestError(f"model.layout {recipe.model.layout}: {BLIND}")
    return layout


def make_model(recipe: Recipe, arch: Architecture, layout: HeadLayout) -> Transformer:
    """Returns the model with random weights, or with the weights of `model.start_from`. If the recipe has a multiple of
    that model's layers, they are repeated (`model.checkpoints.deepened`).

    Raises InvalidRequestError when `model.start_from` has another architecture or layout.
    """
    model = build_transformer(arch, layout, dropout=recipe.train.dropout)
    start_from = recipe.model.start_from
    if start_from:
        source = load_checkpoint(Path(start_from))
        if source.ffn_widths != source.architecture.full_ffn():
            raise InvalidRequestError(
                f"model.start_from {start_from} has lost feed-forward neurons; start from the checkpoint it was pruned "
                "from, and prune the result"
            )
        import_tensors(model, _tensors_to_start_from(source, start_from, arch, layout))
    return model


def _tensors_to_start_from(source: Checkpoint, name: str, arch: Architecture, layout: HeadLayout) -> Tensors:
    """Returns the tensors of `source`, the checkpoint `name`, for the architecture and layout of the recipe.

    Raises InvalidRequestError when they differ in more than the number of layers, or when it is no multiple.
    """
    own = source.architecture
    if own == arch and source.layout == layout:
        return source.tensors
    same_depth = own.model_copy(update={"encoder_layers": arch.encoder_layers, "decoder_layers": arch.decoder_layers})
    if same_depth != arch:
        theirs = dict(same_depth)
        ours = dict(arch)
        different = [f"{key} {theirs[key]} there, {ours[key]} here" for key in theirs if theirs[key] != ours[key]]
        raise InvalidRequestError(
            f"model.start_from {name} is not the model of the recipe: {'; '.join(different)}. Leave out of "
            "[model] what the checkpoint has"
        )
    if own == arch:
        raise InvalidRequestError(
            f"model.start_from {name} has other heads than the recipe: {source.layout.total} open there, "
            f"{layout.total} here; set model.layout={name}"
        )
    if layout != arch.full_layout() or source.layout != own.full_layout():
        raise InvalidRequestError(
            f"model.start_from {name} has {own.encoder_layers} + {own.decoder_layers} layers with "
            f"{source.layout.total} open heads, and layers are only repeated where every head is open; leave "
            "model.encoder_layers, model.decoder_layers and model.layout out, or start from the checkpoint that it was "
            "pruned from"
        )
    if arch.encoder_layers % own.encoder_layers or arch.decoder_layers % own.decoder_layers:
        raise InvalidRequestError(
            f"model.start_from {name} has {own.encoder_layers} encoder and {own.decoder_layers} decoder layers; "
            f"the recipe's {arch.encoder_layers} and {arch.decoder_layers} are no multiples of them"
        )
    return deepened(
        source.tensors, arch.encoder_layers // own.encoder_layers, arch.decoder_layers // own.decoder_layers
    )
