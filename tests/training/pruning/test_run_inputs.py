"""Inputs of runs: refused at the start when they cannot work, and on resume when they changed."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.files import write_pair
from tests.support.recipes import small_recipe
from tests.tiny import SENTENCES, tiny_architecture, tiny_checkpoint_at

from hmc.artifact import HmcError, InvalidRequestError, load_checkpoint
from hmc.training import PruneRequest, PruneSettings, PruningRun, Recipe, TrainingRun, nested_finetune, train
from hmc.training.runs.recipe import RunSection

RUN = RunSection(device="cpu", save_every=1, eval_every=2, eval_sentences=1, log_every=1)
SETTINGS = PruneSettings(close_steps=10, recover_steps=1, batch_tokens=512, run=RUN)


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    return write_pair(tmp_path / "text", SENTENCES * 2)


@pytest.fixture
def empty(tmp_path: Path) -> str:
    return write_pair(tmp_path / "empty", [])


def recipe(corpus: str, **sections: dict[str, Any]) -> Recipe:
    model = {"d_model": 16, "ffn_dim": 16, "decoder_layers": 1, "heads": 2} | sections.pop("model", {})
    return small_recipe(corpus, model=model, run=RUN.model_dump(), **sections)


def request(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "request.json").read_text())
    return found


# -- lengths and dev text ----------------------------------------------------------------------------------------


def test_sentences_are_no_longer_than_the_positions(corpus: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"data\.max_length 128 is above model\.max_positions 24"):
        train(recipe(corpus, model={"max_positions": 24}), tmp_path / "r")
    assert not (tmp_path / "r").exists()
    final = train(recipe(corpus, model={"max_positions": 24}, data={"max_length": 24}), tmp_path / "r")
    assert load_checkpoint(final).architecture.max_positions == 24


def test_pruning_leaves_out_sentences_longer_than_the_positions(corpus: str, tmp_path: Path) -> None:
    tiny_checkpoint_at(tmp_path / "c", arch=tiny_architecture(max_positions=24))
    written = PruningRun(PruneRequest(tmp_path / "c", [9], [corpus], corpus, tmp_path / "p", SETTINGS)).run()
    nested = nested_finetune(
        PruneRequest(tmp_path / "c", (), [corpus], corpus, tmp_path / "p", SETTINGS, nested_steps=2), written
    )
    assert load_checkpoint(nested).layout.total == 24
    tiny_checkpoint_at(tmp_path / "short", arch=tiny_architecture(max_positions=3))
    with pytest.raises(InvalidRequestError, match="no sentence pair of 1 to 3 tokens"):
        PruningRun(PruneRequest(tmp_path / "short", [9], [corpus], corpus, tmp_path / "q", SETTINGS))


def test_empty_dev_text(corpus: str, empty: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"dev corpus .* has no sentence pair"):
        TrainingRun(recipe(corpus, data={"dev": empty}), tmp_path / "r")
    tiny_checkpoint_at(tmp_path / "c")
    with pytest.raises(InvalidRequestError, match=r"dev corpus .* has no sentence pair"):
        PruningRun(PruneRequest(tmp_path / "c", [9], [corpus], empty, tmp_path / "p", SETTINGS))
    assert not (tmp_path / "r").exists()
    assert not (tmp_path / "p").exists()


def test_a_launcher_of_more_processes_than_the_run_has(
    corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    tiny_checkpoint_at(tmp_path / "c")
    with pytest.raises(InvalidRequestError, match=r"2 processes were started .* run needs 1"):
        TrainingRun(recipe(corpus), tmp_path / "r")
    with pytest.raises(InvalidRequestError, match=r"2 processes were started .* run needs 1"):
        PruningRun(PruneRequest(tmp_path / "c", [9], [corpus], corpus, tmp_path / "p", SETTINGS))
    assert not (tmp_path / "r").exists()
    assert not (tmp_path / "p").exists()
    monkeypatch.setenv("WORLD_SIZE", "1")
    TrainingRun(recipe(corpus), tmp_path / "r")


# -- the folder of a run that failed -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mistake",
    [
        {"tokenizer": {"vocab_size": 20_000}},
        {"tokenizer": {"vocab_size": 110}, "model": {"layout": "none.json"}},
        {"tokenizer": {"vocab_size": 110}, "train": {"headmask": "random:99"}},
    ],
)
def test_a_failed_recipe_does_not_block_the_folder(
    corpus: str, tmp_path: Path, mistake: dict[str, dict[str, Any]]
) -> None:
    with pytest.raises(HmcError):
        TrainingRun(recipe(corpus, **mistake), tmp_path / "r")
    final = load_checkpoint(train(recipe(corpus), tmp_path / "r"))
    assert final.architecture.vocab_size == 120
    with pytest.raises(InvalidRequestError, match="another recipe"):
        train(recipe(corpus, **mistake), tmp_path / "r")


def test_a_failed_request_does_not_block_the_folder(corpus: str, tmp_path: Path) -> None:
    tiny_checkpoint_at(tmp_path / "c")
    lines = Path(corpus.split(maxsplit=1)[0]).read_text()
    Path(corpus.split(maxsplit=1)[0]).write_text(lines.splitlines()[0] + "\n")  # noticed only while tokenising
    with pytest.raises(InvalidRequestError, match="differ in length"):
        PruningRun(PruneRequest(tmp_path / "c", [9], [corpus], corpus, tmp_path / "p", SETTINGS))
    other = write_pair(tmp_path / "other", SENTENCES)
    [path] = PruningRun(PruneRequest(tmp_path / "c", [9], [other], other, tmp_path / "p", SETTINGS)).run()
    assert load_checkpoint(path).layout.total == 9
    with pytest.raises(InvalidRequestError, match="other settings"):
        PruningRun(
            PruneRequest(tmp_path / "c", [9], [other], other, tmp_path / "p", SETTINGS.model_copy(update={"seed": 2}))
        )


def test_a_checkpoint_that_a_run_wrote_and_that_is_gone(corpus: str, tmp_path: Path) -> None:
    tiny_checkpoint_at(tmp_path / "c")
    [path] = PruningRun(PruneRequest(tmp_path / "c", [9], [corpus], corpus, tmp_path / "p", SETTINGS)).run()
    path.rename(tmp_path / "elsewhere")
    with pytest.raises(InvalidRequestError, match="which this run wrote, is missing or damaged; put it back"):
        PruningRun(PruneRequest(tmp_path / "c", [9], [corpus], corpus, tmp_path / "p", SETTINGS)).run()


# -- resuming with other text ------------------------------------------------------------------------------------


def forget(progress: Path, *names: str) -> None:
    """Removes fields from a state, as if an earlier version had written it."""
    former = json.loads(progress.read_text())
    progress.write_text(json.dumps({name: value for name, value in former.items() if name not in names}))
    progress.with_name("digests.json").unlink(missing_ok=True)  # as in a state of an earlier version


def tokens_in(out: Path) -> list[str]:
    return sorted(path.parent.name for path in out.glob("cache/*/dataset_info.json"))


def test_a_run_keeps_the_tokens_that_it_uses(corpus: str, tmp_path: Path) -> None:
    """A start that is refused drops none, not even those of BPE-dropout; one that is accepted drops all others."""
    out, drawn = tmp_path / "r", {"bpe_dropout": 0.3, "bpe_dropout_copies": 2}
    train(recipe(corpus, tokenizer=drawn), out)
    [own] = tokens_in(out)
    write_pair(tmp_path / "text", SENTENCES)
    with pytest.raises(InvalidRequestError, match="the training text, or its tokens in cache/, is not what"):
        train(recipe(corpus, tokenizer=drawn), out)
    with pytest.raises(InvalidRequestError, match="another recipe"):
        train(recipe(corpus, tokenizer=drawn, train={"seed": 9}), out)
    assert own in tokens_in(out)
    assert len(tokens_in(out)) == 2
    write_pair(tmp_path / "text", SENTENCES * 2)
    train(recipe(corpus, tokenizer=drawn), out)
    assert tokens_in(out) == [own]


def test_pruning_keeps_the_tokens_that_it_uses(corpus: str, tmp_path: Path) -> None:
    tiny_checkpoint_at(tmp_path / "c")
    out = tmp_path / "p"
    former = out / "cache" / "0123456789abcdef"
    former.mkdir(parents=True)
    (out / "request.json").write_text("{}")
    written = PruningRun(PruneRequest(tmp_path / "c", [9], [corpus], corpus, out, SETTINGS)).run()
    assert not former.exists()
    former.mkdir()
    nested_finetune(PruneRequest(tmp_path / "c", (), [corpus], corpus, out, SETTINGS, nested_steps=2), written)
    assert not former.exists()
    assert len(tokens_in(out)) == 1


def test_training_resumes_with_the_same_text_only(corpus: str, tmp_path: Path) -> None:
    dev = write_pair(tmp_path / "dev", SENTENCES[:3])
    asked = recipe(corpus, data={"dev": dev})
    train(asked, tmp_path / "r")
    resumed = TrainingRun(asked, tmp_path / "r")
    assert resumed.progress.step == 2
    write_pair(tmp_path / "text", SENTENCES * 2)  # written again: its contents count, not its time
    shutil.rmtree(tmp_path / "r" / "cache")
    TrainingRun(asked, tmp_path / "r")
    write_pair(tmp_path / "text", [*SENTENCES, *reversed(SENTENCES)])
    with pytest.raises(InvalidRequestError, match=r"training text, or its tokens in cache/, is not what"):
        TrainingRun(asked, tmp_path / "r")
    write_pair(tmp_path / "text", SENTENCES * 2)
    write_pair(tmp_path / "dev", SENTENCES[:5])  # more sentences than before; more of them may be scored, too
    more = asked.model_copy(update={"run": RUN.model_copy(update={"eval_sentences": 2})})
    assert TrainingRun(more, tmp_path / "r").dev.pairs == [(s, s.upper()) for s in SENTENCES[:2]]
    write_pair(tmp_path / "dev", SENTENCES[1:3])
    with pytest.raises(InvalidRequestError, match=r"dev text is not what .*state was scored on"):
        TrainingRun(asked, tmp_path / "r")
    forget(tmp_path / "r" / "state" / "progress.json", "corpus", "dev")
    assert TrainingRun(asked, tmp_path / "r").progress.step == 2


def test_pruning_resumes_with_the_same_inputs_only(corpus: str, tmp_path: Path) -> None:
    tiny_checkpoint_at(tmp_path / "c")
    dev = write_pair(tmp_path / "dev", SENTENCES[:3])
    request = PruneRequest(tmp_path / "c", [9], [corpus], dev, tmp_path / "p", SETTINGS)
    more = replace(request, nested_steps=2)
    written = PruningRun(request).run()
    nested_finetune(more, written)
    assert PruningRun(request).progress.stage == 2

    def refused(match: str) -> None:
        with pytest.raises(InvalidRequestError, match=match):
            PruningRun(request)
        with pytest.raises(InvalidRequestError, match=match):
            nested_finetune(more, written)

    write_pair(tmp_path / "text", SENTENCES)
    refused("training text")
    write_pair(tmp_path / "text", SENTENCES * 2)
    write_pair(tmp_path / "dev", SENTENCES[3:6])
    refused("dev text")
    write_pair(tmp_path / "dev", SENTENCES[:3])
    tiny_checkpoint_at(tmp_path / "c", seed=7)
    refused("the checkpoint is not the one that .* began with")
    forget(tmp_path / "p" / "state" / "progress.json", "corpus", "dev", "source")
    assert PruningRun(request).progress.stage == 2


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_finished_nested_fine_tuning_is_not_repeated(
    corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_checkpoint_at(tmp_path / "c")
    run = SETTINGS.run.model_copy(update={"save_every": 1000})  # more than the run has updates
    settings = SETTINGS.model_copy(update={"run": run})
    request = PruneRequest(tmp_path / "c", [9], [corpus], corpus, tmp_path / "p", settings, nested_steps=2)
    written = PruningRun(request).run()
    nested = nested_finetune(request, written)
    before = (nested / "model.safetensors").stat().st_mtime_ns
    with monkeypatch.context() as patched:
        patched.setattr("hmc.training.pruning.nested.evaluate", lambda *_, **__: pytest.fail("scored again"))
        assert nested_finetune(request, written) == nested
    assert (nested / "model.safetensors").stat().st_mtime_ns == before
    # A run with another number of steps that ended but was stopped before it wrote its result.
    shutil.rmtree(tmp_path / "p" / "nested-state")
    longer = replace(request, nested_steps=3)
    with monkeypatch.context() as patched:
        patched.setattr("hmc.training.pruning.nested.evaluate", interrupt)
        with pytest.raises(KeyboardInterrupt):
            nested_finetune(longer, written)
    assert load_checkpoint(nested_finetune(longer, written)).config.provenance["steps"] == 3
    shutil.rmtree(nested)
    assert load_checkpoint(nested_finetune(longer, written)).layout.total == 24


# -- the request of pruning --------------------------------------------------------------------------------------


def test_dev_and_nested_steps_are_part_of_the_request(corpus: str, tmp_path: Path) -> None:
    tiny_checkpoint_at(tmp_path / "c")
    other, out = write_pair(tmp_path / "other", SENTENCES), tmp_path / "p"

    def run(dev: str, steps: int) -> PruningRun:
        return PruningRun(PruneRequest(tmp_path / "c", [9], [corpus], dev, out, SETTINGS, nested_steps=steps))

    written = run(corpus, 0).run()
    lines = (out / "log.jsonl").read_text()
    run(corpus, 500)  # nested fine-tuning may be added
    run(corpus, 0)
    assert (request(out)["dev"], request(out)["nested_steps"]) == (corpus, 500)
    assert (out / "log.jsonl").read_text() == lines
    for dev, steps in ((corpus, 10), (other, 500)):
        with pytest.raises(InvalidRequestError, match="other settings"):
            run(dev, steps)
    with pytest.raises(InvalidRequestError, match="nested_steps -5"):
        run(corpus, -5)
    former = request(out)
    del former["dev"], former["nested_steps"]  # as an earlier version wrote it
    (out / "request.json").write_text(json.dumps(former))
    forget(out / "state" / "progress.json", "dev", "source")
    run(other, 10)
    assert (request(out)["dev"], request(out)["nested_steps"]) == (other, 10)
    nested_finetune(PruneRequest(tmp_path / "c", (), [corpus], corpus, out, SETTINGS, nested_steps=2), written)
    with pytest.raises(InvalidRequestError, match="has 2 steps, not 1"):
        nested_finetune(PruneRequest(tmp_path / "c", (), [corpus], corpus, out, SETTINGS, nested_steps=1), written)


def test_a_folder_that_is_moved_or_spelled_differently_goes_on(
    corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "old"
    old.mkdir()
    for path in corpus.split():
        shutil.copy(path, old)
    inside = " ".join(str(old / Path(path).name) for path in corpus.split())
    tiny_checkpoint_at(old / "c")
    PruningRun(PruneRequest(old / "c", [9], [inside], corpus, old / "p", SETTINGS)).run()
    monkeypatch.chdir(tmp_path)
    PruningRun(PruneRequest(Path("old/c"), [9], [inside.replace(f"{tmp_path}/", "")], corpus, Path("old/p"), SETTINGS))
    old.rename(tmp_path / "new")
    moved = inside.replace(str(old), "new")
    PruningRun(PruneRequest(Path("new/c"), [9], [moved], corpus, Path("new/p"), SETTINGS))
    with pytest.raises(InvalidRequestError, match="train: "):
        PruningRun(PruneRequest(Path("new/c"), [9], [corpus], corpus, Path("new/p"), SETTINGS))
