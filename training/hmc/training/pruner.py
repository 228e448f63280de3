"""`hmc prune`: from a converged checkpoint to checkpoints with exactly N open heads (Voita et al. 2019, section 6)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from hmc.artifact.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.heads import KINDS, HeadLayout, HeadScores, select_heads
from hmc.artifact.slimming import slim_tensors
from hmc.training.batches import BatchStream
from hmc.training.convert import export_tensors, model_from_checkpoint
from hmc.training.corpus import Pair, TokenCorpus, read_pairs
from hmc.training.evaluate import Scores, evaluate
from hmc.training.gating import HeadGates, mask_to_layout, open_gates
from hmc.training.lagrangian import BudgetPressure, l0_penalty
from hmc.training.progress import RunLog
from hmc.training.prune_settings import PruneSettings
from hmc.training.state import load_state, save_state
from hmc.training.updater import Updater, make_fabric, make_optimizer
from hmc.training.vocabulary import Vocabulary

BUDGET_FALLS = 0.6
"""Share of close_steps over which the budget falls to its target."""
SETTLE_FROM, SETTLE_WEIGHT = 0.5, 1.0
"""Share of close_steps after which gates are pressed to decide, and the final weight of that pressure."""


@dataclass
class PruneProgress:
    """What a resumed run must know besides weights, moments and random numbers."""

    stage: int = 0
    step: int = 0
    """Updates done within the stage."""
    epoch: int = 0
    index: int = 0
    layout: dict[str, list[list[int]]] | None = None
    """Layout fixed by the last closing stage."""
    start_open: float = 0.0
    """Expected open heads when the present closing stage began."""
    pressure: dict[str, float] = field(default_factory=dict)
    before: dict[str, Any] = field(default_factory=dict)
    trajectory: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Stage:
    """Close gates down to `budget` heads (None: λ form), or recover with the layout fixed."""

    kind: str
    budget: int | None
    steps: int


class PruningRun:
    """One pruning run; `run()` returns the checkpoints written, one a budget."""

    def __init__(
        self, source: Path, targets: Sequence[int], train: Sequence[str], dev: str, out: Path, settings: PruneSettings
    ) -> None:
        """source: converged checkpoint. targets: budgets, largest first; empty with settings.l0_lambda.

        Raises InvalidRequestError, InvalidArtifactError.
        """
        self.source, self.out, self.settings = load_checkpoint(source), out, settings
        self.stages = _stages(targets, self.source.layout.total, settings)
        out.mkdir(parents=True, exist_ok=True)
        self._check_request(
            {
                "source": str(source),
                "targets": list(targets),
                "train": list(train),
                "settings": settings.model_dump(mode="json", exclude={"run"}),
            }
        )
        self.fabric = make_fabric(settings.run)
        config = self.source.config
        languages = (config.source_language, config.target_language)
        self.vocabulary = Vocabulary(self.source.tokenizer)
        corpus = TokenCorpus.build(list(train), self.vocabulary, settings.max_length, out / "cache", languages)
        self.dev: list[Pair] = list(read_pairs(dev, languages))[: settings.run.eval_sentences]
        torch.manual_seed(settings.seed)
        self.model = model_from_checkpoint(self.source, dropout=settings.dropout)
        self.gates = HeadGates(self.model, self.source.layout, settings.initial_log_alpha)
        gate_ids = {id(p) for p in self.gates.parameters()}
        weights = [p for p in self.model.parameters() if id(p) not in gate_ids]
        section = settings.train_section(sum(s.steps for s in self.stages))
        optimizer = make_optimizer(
            [{"params": weights, "name": "weights"}, {"params": self.gates.parameters(), "name": "gates"}], section
        )
        self.stream = BatchStream(
            corpus,
            settings.batch_tokens,
            settings.seed,
            self.vocabulary.pad_id,
            self.fabric.global_rank,
            self.fabric.world_size,
        )
        self.updater = Updater(self.fabric, self.model, optimizer, iter(self.stream), section)
        self.progress = PruneProgress(start_open=float(self.source.layout.total))
        self.pressure = BudgetPressure(self.gates.total)
        if (out / "state").is_dir():
            self.progress = PruneProgress(**load_state(out / "state", self.model, self.updater.optimizer))
            self.pressure = BudgetPressure(**self.progress.pressure)  # type: ignore[arg-type]
            self.stream.epoch, self.stream.index = self.progress.epoch, self.progress.index

    def run(self) -> list[Path]:
        """Runs (or resumes) every stage; returns the checkpoints' paths in the order of the budgets."""
        progress, written = self.progress, []
        done = sum(s.steps for s in self.stages[: progress.stage]) + progress.step
        with RunLog("prune", self.out, sum(s.steps for s in self.stages), done) as log:
            if not progress.before:
                open_gates(self.model)
                progress.before = self._evaluate(log, "before").to_json()
                self.gates.sampled()
            for number, stage in enumerate(self.stages):
                offset = sum(s.steps for s in self.stages[:number])
                if number >= progress.stage:
                    self._run_stage(stage, offset, log)
                    if stage.kind == "recover":
                        self._write(stage, log)
                    progress.stage, progress.step = number + 1, 0
                    self._save()
                if stage.kind == "recover":
                    written.append(self._path(stage))
        return written

    # -- stages --------------------------------------------------------------------------------------------------

    def _run_stage(self, stage: Stage, offset: int, log: RunLog) -> None:
        progress, run = self.progress, self.settings.run
        self.model.train()
        if stage.kind == "recover":
            self._fix_layout(stage, log)
        else:
            self.gates.sampled()
        while progress.step < stage.steps:
            progress.step += 1
            scalars = self._close(stage) if stage.kind == "close" else self._recover(stage)
            step = offset + progress.step
            log.advance(step)
            if progress.step % run.log_every == 0:
                log.report(step, scalars)
            if progress.step % run.save_every == 0:
                self._save()
        if stage.kind == "close":
            progress.start_open = self.gates.expected_open()

    def _close(self, stage: Stage) -> dict[str, float]:
        """One update with sampled gates and the pressure on them."""
        settings, progress = self.settings, self.progress
        share = progress.step / stage.steps
        rates = {"weights": settings.learning_rate, "gates": settings.gate_rate}
        if stage.budget is None:
            strength = settings.l0_lambda or 0.0
            update = self.updater.update(
                progress.step, lambda: l0_penalty(self.gates.open_probabilities(), strength), rates
            )
            return {
                "loss": update.loss,
                "open": self.gates.expected_open(),
                "unsettled": float(self.gates.unsettled()),
            }
        fallen = min(1.0, share / BUDGET_FALLS)
        budget = progress.start_open + (stage.budget - progress.start_open) * fallen
        self.pressure.settle = SETTLE_WEIGHT * max(0.0, (share - SETTLE_FROM) / (1 - SETTLE_FROM))
        update = self.updater.update(
            progress.step, lambda: self.pressure.penalty(self.gates.open_probabilities(), budget), rates
        )
        expected = self.gates.expected_open()
        self.pressure.ascend(expected, budget)
        scalars = {"loss": update.loss, "budget": budget, "open": expected, "unsettled": float(self.gates.unsettled())}
        if progress.step % settings.run.log_every == 0:
            progress.trajectory.append({"stage": progress.stage, "step": progress.step, **scalars})
        return scalars

    def _recover(self, stage: Stage) -> dict[str, float]:
        """One update with the layout fixed."""
        rate = self.settings.learning_rate * (1 - (self.progress.step - 1) / stage.steps)
        update = self.updater.update(self.progress.step, None, {"weights": rate, "gates": 0.0})
        return {"loss": update.loss, "rate": rate}

    def _fix_layout(self, stage: Stage, log: RunLog) -> None:
        """Chooses the open heads by log α once, and masks the rest from now on."""
        if self.progress.layout is None or self.progress.step == 0:
            budget = stage.budget
            if budget is None:
                budget = int((self.gates.open_probabilities() > 0.5).sum())
            layout = select_heads(self.gates.scores(self.source.architecture), self.source.layout, budget)
            counts = {kind: sum(map(len, layout[kind])) for kind in KINDS}
            log.say(f"{layout.total} open heads: {counts}; {self.gates.unsettled()} gates were not settled")
            self.progress.layout = layout.to_json()
        mask_to_layout(self.model, self.source.layout, HeadLayout.from_json(self.progress.layout))

    # -- results -------------------------------------------------------------------------------------------------

    def _evaluate(self, log: RunLog, what: str) -> Scores:
        scores = evaluate(self.model, self.vocabulary, self.dev, beam=4)
        log.say(f"{what}: dev BLEU {scores.bleu:.2f} (beam 4, {scores.sentences} sentences)")
        return scores

    def _write(self, stage: Stage, log: RunLog) -> None:
        assert self.progress.layout is not None
        layout = HeadLayout.from_json(self.progress.layout)
        after = self._evaluate(log, f"after, {layout.total} heads")
        arch, config = self.source.architecture, self.source.config
        tensors = slim_tensors(export_tensors(self.model), arch, self.source.layout, layout)
        provenance = {
            "command": "hmc prune",
            "from": config.provenance,
            "settings": self.settings.model_dump(mode="json"),
            "unsettled_gates": self.gates.unsettled(),
            "trajectory": self.progress.trajectory,
            "torch": torch.__version__,
        }
        if self.fabric.is_global_zero:
            pruned = Checkpoint(
                config=config.model_copy(update={"head_layout": layout.to_json(), "provenance": provenance}),
                tensors=tensors,
                tokenizer=self.source.tokenizer,
                gates=self._finite_scores(),
                metrics={"dev_before": self.progress.before, "dev_after": after.to_json()},
            )
            save_checkpoint(pruned, self._path(stage))
            log.say(f"wrote {self._path(stage)}")

    def _finite_scores(self) -> HeadScores:
        """log α with a very low value, instead of -inf, for heads the source no longer had."""
        return {k: v.clip(min=-1e4) for k, v in self.gates.scores(self.source.architecture).items()}

    def _path(self, stage: Stage) -> Path:
        return self.out / ("pruned" if stage.budget is None else f"h{stage.budget}")

    def _save(self) -> None:
        self.progress.epoch, self.progress.index = self.stream.epoch, self.stream.index
        self.progress.pressure = self.pressure.to_json()
        if self.fabric.is_global_zero:
            # A mask has no parameters: the gates come back so that their log α are part of the state.
            masks = [(attention, attention.gate) for *_, attention in self.model.attentions()]
            self.gates.sampled()
            save_state(self.out / "state", self.model, self.updater.optimizer, asdict(self.progress))
            for attention, gate in masks:
                attention.gate = gate

    def _check_request(self, request: dict[str, Any]) -> None:
        path, current = self.out / "request.json", json.dumps(request, indent=1)
        if path.is_file() and path.read_text() != current:
            raise InvalidRequestError(
                f"{self.out} holds a pruning run with other settings; choose another --out or delete it"
            )
        path.write_text(current)


def _stages(targets: Sequence[int], heads: int, settings: PruneSettings) -> list[Stage]:
    """Close and recover for every budget, largest first."""
    if bool(targets) == (settings.l0_lambda is not None):
        raise InvalidRequestError("give either --target-heads N[,N…] or --l0-lambda X")
    if any(not 0 <= t < heads for t in targets) or list(targets) != sorted(set(targets), reverse=True):
        raise InvalidRequestError(
            f"--target-heads {','.join(map(str, targets))}: give falling budgets below the {heads} heads there are"
        )
    budgets: list[int | None] = [*targets] or [None]
    return [
        s
        for b in budgets
        for s in (Stage("close", b, settings.close_steps), Stage("recover", b, settings.recover_steps))
    ]
