"""Nested fine-tuning: one set of weights that serves several head budgets. Each batch trains one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hmc.artifact.checkpoint import CONFIG, Checkpoint, checkpoint_digest, load_checkpoint, save_checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.heads import KINDS, HeadLayout, HeadScores, select_heads
from hmc.training.batches import BatchStream
from hmc.training.convert import export_tensors, model_from_checkpoint
from hmc.training.evaluate import evaluate
from hmc.training.freezing import freeze
from hmc.training.gating import mask_to_layout
from hmc.training.parallel_text import Pair, read_dev
from hmc.training.processes import seed_process
from hmc.training.progress import RunLog
from hmc.training.prune_inputs import Inputs, fingerprints_of, prune_corpus
from hmc.training.prune_settings import PruneSettings
from hmc.training.state import load_state, progress_from, save_state
from hmc.training.transformer import Transformer
from hmc.training.updater import Updater, make_fabric, make_optimizer
from hmc.training.vocabulary import Vocabulary

OPEN_BONUS = 100.0
"""Added to a head's score for every budget that kept it: heads of smaller budgets rank above all others."""


def nested_ranking(pruned: Sequence[Checkpoint]) -> HeadScores:
    """Scores per head from checkpoints pruned to falling budgets: kept longest first, then by log α of the first."""
    first = pruned[0]
    if any(c.gates is None for c in pruned) or first.gates is None:
        raise InvalidRequestError("nested fine-tuning ranks heads by log α: give checkpoints written by `hmc prune`")
    scores = {kind: np.tanh(np.array(first.gates[kind]) / 10).astype(np.float32) for kind in KINDS}
    for checkpoint in pruned:
        for head in checkpoint.layout.heads():
            scores[head.kind][head.layer, head.index] += OPEN_BONUS
    return scores


@dataclass
class NestedProgress:
    """What a resumed run must know besides weights, moments and random numbers."""

    step: int = 0
    epoch: int = 0
    index: int = 0
    steps: int = 0
    """Updates asked for; 0 in a state by an earlier version."""
    corpus: str = ""
    """Fingerprint of the tokenised training text; empty in a state by an earlier version, as the next two."""
    dev: str = ""
    """Fingerprint of the dev text."""
    source: str = ""
    """Digest of the checkpoint that is fine-tuned."""


def nested_finetune(
    source: Path, pruned: Sequence[Path], train: Sequence[str], dev: str, out: Path, settings: PruneSettings, steps: int
) -> Path:
    """Fine-tunes `source` so that its N best-ranked heads alone serve every budget N of `pruned`, and all of them too.

    Each update draws one budget uniformly (the full model is one of them). Writes `out / "nested"`: the source's own
    layout, the ranking as gates, and dev scores of every level; `hmc compile --target-heads` reads it. Resumes.
    """
    base = load_checkpoint(source)
    others = [load_checkpoint(p) for p in pruned]
    if any(c.ffn_widths != base.ffn_widths for c in others):
        raise InvalidRequestError(
            f"nested fine-tuning serves budgets of heads with one set of weights, and these checkpoints have lost "
            f"feed-forward neurons that {source} has: prune its neurons first, then the heads of the result"
        )
    ranking = nested_ranking(others)
    budgets = [base.layout.total, *(c.layout.total for c in others)]
    layouts = [select_heads(ranking, base.layout, n) for n in budgets]
    fabric = make_fabric(settings.run)
    vocabulary = Vocabulary(base.tokenizer)
    languages = (base.config.source_language, base.config.target_language)
    with fabric.rank_zero_first():
        corpus = prune_corpus(base, train, settings, out / "cache")
    text = read_dev(dev, languages, settings.run.eval_sentences)
    torch.manual_seed(settings.seed)
    model = model_from_checkpoint(base, dropout=settings.dropout)
    seed_process(fabric, settings.seed)
    section = settings.train_section(steps)
    optimizer = make_optimizer([{"params": freeze(model, settings.freeze), "name": "weights"}], section)
    stream = BatchStream(
        corpus, settings.batch_tokens, settings.seed, vocabulary.pad_id, fabric.global_rank, fabric.world_size
    )
    updater = Updater(fabric, model, optimizer, iter(stream), section)
    inputs = Inputs(corpus, text, checkpoint_digest(source))
    progress, state = NestedProgress(steps=steps), out / "nested-state"
    inputs.note(progress)
    if state.is_dir():
        progress = progress_from(NestedProgress, load_state(state, model, updater.optimizer, fabric), state)
        inputs.check_same(progress, state)
        if (progress.steps or steps) != steps or progress.step > steps:
            raise InvalidRequestError(
                f"{state} is of {progress.steps or progress.step} steps, not {steps}; give --nested-steps as then, or "
                "delete it to fine-tune anew"
            )
        progress.steps = steps
        stream.epoch, stream.index = progress.epoch, progress.index
        if progress.step == steps and _is_written(out / "nested", progress):
            return out / "nested"
    with RunLog("nested", out, steps, progress.step, active=fabric.is_global_zero) as log:
        model.train()
        while progress.step < steps:
            progress.step += 1
            drawn = int(np.random.default_rng([settings.seed, progress.step]).integers(len(layouts)))
            mask_to_layout(model, base.layout, layouts[drawn])
            rate = settings.learning_rate * (1 - (progress.step - 1) / steps)
            update = updater.update(progress.step, None, {"weights": rate})
            log.advance(progress.step)
            if progress.step % settings.run.log_every == 0:
                log.report(progress.step, {"loss": update.loss, "heads": float(budgets[drawn]), "rate": rate})
            if progress.step % settings.run.save_every == 0 or progress.step == steps:
                progress.epoch, progress.index = stream.epoch, stream.index
                save_state(state, model, updater.optimizer, asdict(progress), fabric)
        if fabric.is_global_zero:
            nested = Checkpoint(
                config=base.config.model_copy(
                    update={
                        "provenance": {
                            "command": "hmc prune --nested-steps",
                            "from": base.config.provenance,
                            "budgets": budgets,
                            "steps": steps,
                            "inputs": inputs.fingerprints(),
                        }
                    }
                ),
                tensors=export_tensors(model),
                tokenizer=base.tokenizer,
                gates=ranking,
                metrics=_level_scores(model, base.layout, layouts, vocabulary, text.pairs, log),
            )
            save_checkpoint(nested, out / "nested")
            log.say(f"wrote {out / 'nested'}")
    fabric.barrier()
    return out / "nested"


def _is_written(path: Path, progress: NestedProgress) -> bool:
    """Whether the result of a run that has come to its end is there: that of an earlier one may be."""
    if not (path / CONFIG).is_file():
        return False
    made = load_checkpoint(path).config.provenance
    return (made.get("steps"), made.get("inputs")) == (progress.steps, fingerprints_of(progress))


def _level_scores(
    model: Transformer,
    whole: HeadLayout,
    layouts: Sequence[HeadLayout],
    vocabulary: Vocabulary,
    pairs: Sequence[Pair],
    log: RunLog,
) -> dict[str, Any]:
    """Dev scores with the heads of each layout open, as `dev_hN`."""
    metrics: dict[str, Any] = {}
    for layout in layouts:
        mask_to_layout(model, whole, layout)
        scores = evaluate(model, vocabulary, pairs, beam=4)
        metrics[f"dev_h{layout.total}"] = scores.to_json()
        log.say(f"nested, {layout.total} heads: dev BLEU {scores.bleu:.2f} (beam 4)")
    return metrics
