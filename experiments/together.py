"""Trains a model, and what is pruned from it, for a given time.

    python -m experiments.together FULL --out runs/full --text text --seconds 325 --dropout 0.2 --shares runs/teacher
    python -m experiments.together FULL --out runs/levels --text text --seconds 450 --until 0.85 --heads 75,58,36 \
        --close 0.4 --rate 3e-4 --teacher FULL
    python -m experiments.together SMALL --out runs/fast --text text --seconds 450 --until 0.85 --rate 1.2e-3 \
        --teacher FULL --follows runs/teacher

Started together, they share the GPU (with CUDA's MPS they also compute at once). The first writes its weights to
--shares every 15 seconds, and the others, who learn from it, take them from there. TEXT is that of `experiments.kinds`.

With --heads one set of weights is trained for several numbers of heads: every update has a pass of the largest and one
of another. Until --close of the time, heads are closed five at a time, those of lowest importance I_h (Michel et al.
2019) among the open ones, and I_h is measured anew each time. Without --close the checkpoint's gates rank its heads.

The learning rate falls to zero with the time, so a run ends when it should on any machine. Each of --share batches
until that part of the time is segmented with BPE-dropout 0.1. OUT gets the checkpoint `final` at 8 bits, and `log.txt`.
A run that was killed goes on from its last state, of which it saves one a minute; a run that has ended does nothing.
With --translate it writes what each level makes of those texts, `outputs.json.gz`, when it has trained.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from experiments.kinds import KINDS as TEXTS
from experiments.kinds import table
from experiments.support.script import run_script
from hmc.artifact.checkpoint.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from hmc.artifact.checkpoint.slimming import slim_tensors
from hmc.artifact.model.heads import KINDS, HeadLayout, HeadScores, rank_heads, select_heads
from hmc.artifact.storage.files import write_whole
from hmc.training.data.batches import Batch, made_ahead, make_batch, plan_epoch
from hmc.training.data.corpus import Splitting, TokenCorpus
from hmc.training.data.vocabulary import Vocabulary
from hmc.training.distillation.settings import DistillSection
from hmc.training.distillation.teacher import NOTHING, Distillation, Teacher
from hmc.training.model.checkpoints import export_tensors, model_from_checkpoint
from hmc.training.model.evaluate import translate
from hmc.training.model.importance import corpus_importance
from hmc.training.model.regimes import select_layout
from hmc.training.runs.optimizer import make_optimizer
from hmc.training.runs.processes import computes_bf16, make_fabric
from hmc.training.runs.recipe import RunSection, TrainSection
from hmc.training.runs.state import load_state, save_state
from hmc.training.runs.updater import Masks, Updater

OUTPUTS = "outputs.json.gz"
SHARED_EVERY = 15.0
"""Seconds between two copies of the weights that others follow."""
LONGEST = 120.0
"""Seconds that ten updates count at most: time in which a process was stopped is no training."""
SAVED_EVERY = 60.0
"""Seconds of training between two saved states."""
AT_ONCE = 5
"""Heads that are closed at a time."""
JUDGES = 3
"""Batches on which importance is measured each time."""
OPEN = 1000.0
"""Score of a head that was never closed; others have the number of heads that were closed before."""


class Run:
    """One training."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.manual_seed(options.seed)
        self.options, self.base = options, load_checkpoint(options.checkpoint)
        run = RunSection(device=options.device, devices=options.devices)
        self.fabric = make_fabric(run.model_copy(update={"precision": "bf16-mixed"}) if computes_bf16(run) else run)
        self.model = model_from_checkpoint(self.base, dropout=options.dropout).to(self.fabric.device)
        self.part, self.active, self.updates = 0.0, 0.0, 0
        self.distillation = NOTHING
        if options.teacher:
            section = DistillSection(weight=options.distill)
            teacher = model_from_checkpoint(load_checkpoint(options.teacher))
            self.distillation = Distillation(section, Teacher(teacher, section))
        settings = TrainSection(
            batch_tokens=options.batch_tokens, learning_rate=options.rate, dropout=options.dropout, seed=options.seed,
            optimizer="muon",
        )  # fmt: skip
        groups = [{"params": [p for p in self.model.parameters() if p.requires_grad], "name": "weights"}]
        self.updater = Updater(
            self.fabric, self.model, make_optimizer(groups, settings, self.model), made_ahead(self.mixed(), 6),
            settings, distillation=self.distillation,
        )  # fmt: skip
        self.layout, self.budgets = self.base.layout, [int(number) for number in options.heads.split(",") if number]
        full = {kind: np.full((len(self.layout[kind]), self.model.arch.heads), OPEN, np.float32) for kind in KINDS}
        self.scores: HeadScores = full if options.close or self.base.gates is None else self.base.gates
        self.judged = self.batches(Splitting(), options.seed + 50)
        self.state = options.out / "state"
        if self.state.is_dir():
            self.restore()

    def batches(self, segmentation: Splitting, seed: int) -> Iterator[Batch]:
        """Endless batches of the training text."""
        options, pad, pinned = self.options, self.model.arch.pad_id, self.fabric.device.type == "cuda"
        files = [*(str(options.text / f"train.{kind}.tsv.gz") for kind in TEXTS), *map(str, options.more)]
        vocabulary = Vocabulary(self.base.tokenizer)
        cache = options.cache or options.out / f"cache-{self.fabric.global_rank}"
        corpus, epoch = TokenCorpus.build(files, vocabulary, 128, cache, ("en", "de"), segmentation), 0
        while True:
            for rows in plan_epoch(corpus, options.batch_tokens, seed, epoch):
                batch = make_batch(*corpus.batch(rows), pad)
                yield batch.pinned() if pinned else batch
            epoch += 1

    def mixed(self) -> Iterator[Batch]:
        """Batches of plain text, and for a time as many that are segmented at random."""
        seed = self.options.seed + 1000 * self.fabric.global_rank + 10_000 * self.updates  # that of a resumed run
        plain, dropped = self.batches(Splitting(), seed), self.batches(Splitting(0.1, 3), seed + 100)
        draw = np.random.default_rng([seed, 5])
        while True:
            yield next(dropped if self.part < self.options.until and draw.random() < self.options.share else plain)

    @property
    def open(self) -> int:
        """Heads that were not closed yet."""
        return sum(int((self.scores[kind] == OPEN).sum()) for kind in KINDS)

    def close(self) -> None:
        """Closes heads of lowest importance, if it is time; never more than the smallest level lacks."""
        total, smallest = self.layout.total, self.budgets[-1]
        left = max(smallest, total - (total - smallest) * self.part / self.options.close)
        number = min(AT_ONCE, self.open - smallest)
        if not number or self.open - left < number:
            return
        current = self.level(self.open)
        tensors = slim_tensors(export_tensors(self.model), self.model.arch, self.layout, current)
        config = self.base.config.model_copy(update={"head_layout": current.to_json()})
        slim = model_from_checkpoint(Checkpoint(config, tensors, self.base.tokenizer)).to(self.fabric.device)
        text = [next(self.judged) for _ in range(JUDGES)]
        importance = self.fabric.broadcast(corpus_importance(slim, text, current))
        before = self.layout.total - self.open
        for place, head in enumerate(rank_heads(importance, current)[::-1][:number]):
            self.scores[head.kind][head.layer, head.index] = before + place

    def level(self, heads: int) -> HeadLayout:
        """The layout of so many heads."""
        return select_heads(self.scores, self.layout, heads)

    def passes(self) -> list[Masks]:
        """Of this update: one of the largest level, and one of another, the smallest so far while heads are closed."""
        if not self.budgets:
            return []
        largest, smallest = max(self.budgets[0], self.open if self.options.close else 0), self.budgets[-1]
        numbers = [largest]
        if self.options.close and smallest < self.open < largest:
            numbers.append(self.open)
        elif largest == self.budgets[0] and len(self.budgets) > 1:
            draw = np.random.default_rng([self.options.seed, self.updates])
            numbers.append(self.budgets[1 + int(draw.integers(len(self.budgets) - 1))])
        return [partial(select_layout, self.model, self.layout, self.level(number)) for number in numbers]

    def train(self) -> None:
        """Trains until the time is over, and writes the checkpoint."""
        options, seen, shared, last = self.options, 0.0, 0.0, time.time()
        saved, began = self.active, self.updates
        name = options.out / ("log.txt" if self.fabric.is_global_zero else f"log-{self.fabric.global_rank}.txt")
        with name.open("a", buffering=1, encoding="utf-8") as log:
            while self.active < options.seconds:
                self.part = self.active / options.seconds
                rate = options.rate * min(1 - self.part, (self.part + 1e-3) / options.warm)
                self.updates += 1
                self.updater.update(self.updates, None, {"weights": rate}, self.passes())
                if self.updates == began + 1:  # text was prepared for it
                    last = time.time()
                if self.updates % 10:
                    continue
                if self.fabric.device.type == "cuda":
                    torch.cuda.synchronize()
                now = time.time()
                self.active, last = self.fabric.broadcast(self.active + min(now - last, LONGEST)), now
                if options.close:
                    self.close()
                if options.shares and now - shared > SHARED_EVERY:
                    shared = self.share()
                seen = self.follow(seen)
                if self.updates % 100 == 0:
                    loss = self.updater.tally.line().get("loss", 0.0)
                    heads = f"{self.open} heads  " if options.close else ""
                    text = f"{self.updates} updates  {self.active:.0f} s  {heads}rate {rate:.2e}  loss {loss:.4f}"
                    print(text, file=log)
                if self.active - saved > SAVED_EVERY:
                    saved = self.active
                    self.save()
            if options.shares:
                self.share()
            print(f"end: {self.updates} updates", file=log)
        self.write()

    def save(self) -> None:
        """Saves what a run goes on from."""
        scores = {kind: np.asarray(self.scores[kind]).tolist() for kind in KINDS}
        progress = {"active": self.active, "updates": self.updates, "scores": scores}
        save_state(self.state, self.model, self.updater.optimizer, progress, self.fabric)

    def restore(self) -> None:
        """Goes on from the saved state, with batches that were not seen just before."""
        progress = load_state(self.state, self.model, self.updater.optimizer, self.fabric)
        self.active = progress["active"]
        self.updates = progress["updates"]
        self.part = self.active / self.options.seconds
        self.scores = {kind: np.asarray(progress["scores"][kind], np.float32) for kind in KINDS}

    def translate(self) -> None:
        """Writes the translations of every level: level → text → lines."""
        options, vocabulary = self.options, Vocabulary(self.base.tokenizer)
        texts = {path.name: [source for source, _ in table(path)] for path in options.translate}
        every = [source for sources in texts.values() for source in sources]
        found: dict[str, dict[str, list[str]]] = {}
        for number in self.budgets or [self.layout.total]:
            if self.budgets:
                select_layout(self.model, self.layout, self.level(number))
            lines = iter(translate(self.model, vocabulary, every, beam=options.beam, batch_size=256))
            found[f"h{number}"] = {name: list(islice(lines, len(sources))) for name, sources in texts.items()}
        write_whole(options.out / OUTPUTS, gzip.compress(json.dumps(found).encode(), mtime=0))

    def share(self) -> float:
        """Writes the weights for those who follow; returns the time."""
        part = self.options.shares.with_suffix(".part")
        save_file({name: p.detach().clone().contiguous() for name, p in self.model.named_parameters()}, part)
        part.replace(self.options.shares)
        return time.time()

    @torch.no_grad()
    def follow(self, seen: float) -> float:
        """Takes the teacher's newest weights, if there are any after `seen`; returns their time."""
        path, teacher = self.options.follows, self.distillation.teacher
        if path is None or teacher is None or not path.exists() or path.stat().st_mtime <= seen:
            return seen
        seen, found = path.stat().st_mtime, load_file(path, device=str(self.fabric.device))
        for name, parameter in teacher.model.named_parameters():
            parameter.copy_(found[name])
        return seen

    def write(self) -> None:
        """Writes the checkpoint, cut to its largest level, with gates that rank the heads."""
        if not self.fabric.is_global_zero:
            return
        options, kept = self.options, self.level(self.budgets[0]) if self.budgets else self.layout
        provenance = {
            "command": "python -m experiments.together", "from": self.base.config.provenance, "updates": self.updates,
            "batch_tokens": options.batch_tokens * options.devices, "rate": options.rate, "optimizer": "muon",
            "seed": options.seed, "dropout": options.dropout, "levels": self.budgets, "close": options.close,
            "distill": options.distill if options.teacher else 0.0,
        }  # fmt: skip
        config = self.base.config.model_copy(update={"provenance": provenance, "head_layout": kept.to_json()})
        tensors = slim_tensors(export_tensors(self.model), self.model.arch, self.layout, kept)
        made = Checkpoint(config, tensors, self.base.tokenizer, gates=self.scores)
        save_checkpoint(made, options.out / "final", dtype="int8")


def main() -> None:
    """Parses arguments and trains."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--heads", default="", help="falling numbers of heads, of levels in one set of weights")
    parser.add_argument("--close", type=float, default=0.0, help="share of the time in which heads are closed")
    parser.add_argument("--seconds", type=float, required=True, help="duration of training")
    parser.add_argument("--rate", type=float, default=8e-4, help="highest learning rate")
    parser.add_argument("--warm", type=float, default=0.02, help="share of the time in which the rate rises")
    parser.add_argument("--batch-tokens", type=int, default=24576)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--share", type=float, default=0.5, help="share of batches with BPE-dropout")
    parser.add_argument("--until", type=float, default=0.75, help="share of the time with such batches")
    parser.add_argument("--teacher", type=Path, help="checkpoint to learn from")
    parser.add_argument("--distill", type=float, default=0.9, help="share of the divergence in the loss")
    parser.add_argument("--follows", type=Path, help="file from which the teacher's weights are taken")
    parser.add_argument("--shares", type=Path, help="file to which weights are written for those who follow")
    parser.add_argument("--more", type=Path, nargs="*", default=[], help="texts beside those of the six kinds")
    parser.add_argument("--cache", type=Path, help="folder of tokens that several runs share")
    parser.add_argument("--translate", type=Path, nargs="*", default=[], help="texts to translate at the end")
    parser.add_argument("--beam", type=int, default=4, help="beam of these translations")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--devices", type=int, default=1, help="processes, each with batches of its own")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if (options.out / "done").exists():
        return
    run = Run(options)
    run.train()
    if options.translate and run.fabric.is_global_zero:
        run.translate()
    (options.out / "done").touch()


if __name__ == "__main__":
    run_script(main)
