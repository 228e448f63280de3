"""Tests the claims of the papers: says what is left, runs it, and writes the page.

    python -m experiments.papers plan --size smoke
    python -m experiments.papers run --size smoke --data DATA
    python -m experiments.papers run --size papers --data DATA headmask/baseline headmask/random --minutes 600
    python -m experiments.papers page --size papers

Run it from the top of a checkout. `--data` holds the folders `multi30k`, `mixed` and `ud`. What exists is not made
again, and an interrupted training goes on from its last state, so the command can be repeated after a break. `page`
also copies the results, without weights, to `--kept`; from there every command takes what the folder of runs lacks.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.papers import page
from experiments.papers.sizes import SIZES
from experiments.papers.steps import SETTINGS, WEIGHTS, Driver, keep, left_of, restore, some_of
from experiments.papers.studies import Study, check_model, check_same, settings
from experiments.support.script import run_script
from hmc.artifact.storage.files import write_whole


def main(arguments: Sequence[str]) -> int:
    """Carries out one of the three commands; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.papers", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("command", choices=("plan", "run", "page"), help="what to do")
    parser.add_argument("only", nargs="*", metavar="NAME", help="only steps whose names hold one of these, and what "
                        "they need, such as headmask/random or michel")  # fmt: skip
    sizes = "; ".join(f"{name}: {size.says}" for name, size in SIZES.items())
    parser.add_argument("--size", choices=SIZES, default="smoke", help=f"{sizes} (default: smoke)")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the corpora (default: data)")
    parser.add_argument("--runs", type=Path, default=Path("runs/papers"), help="results (default: runs/papers)")
    parser.add_argument("--model", type=Path, help="a checkpoint whose heads are studied; default: the first baseline")
    parser.add_argument("--minutes", type=float, help="begin no step after so many minutes")
    parser.add_argument("--jobs", type=int, default=1, help="steps at once: small trainings share a GPU (default: 1)")
    parser.add_argument("--hmc", default="hmc", help="command to run HMC with (default: hmc)")
    default = Path("docs/reproduction.md")
    parser.add_argument("--page", type=Path, default=default, help=f"the page (default: {default})")
    kept = Path("experiments/papers/results")
    parser.add_argument("--kept", type=Path, default=kept, help=f"results that stay with the project (default: {kept})")
    given = parser.parse_intermixed_args(arguments)  # names may come after options
    if given.jobs < 1:
        parser.error(f"--jobs {given.jobs}: choose 1 or more")
    name = given.size if given.model is None else f"{given.size}-{given.model.parent.name}-{given.model.name}"
    kept = given.kept / name  # of each model its own: what is done for one is not done for another
    study = Study(SIZES[given.size], given.runs / name, given.data, given.model, kept)
    check_model(study)
    for results in (study.root, kept):
        check_same(study, results / SETTINGS)
    restore(kept, study.root)
    if given.model is not None:
        restore(given.kept / given.size, study.root, WEIGHTS)
    if given.command == "page":
        if given.size != "papers" and given.page == default:
            parser.error(f"{default} is of --size papers; name another --page, such as a copy of it")
        keep(study.root, kept)
        page.write(study, given.size, given.page)
        return 0
    steps = some_of(study.steps(), given.only)
    if not steps:
        parser.error(f"no step's name holds {', '.join(given.only)}")
    driver = Driver(study.root, shlex.split(given.hmc), study.size.minutes)
    if given.command == "run":
        used = {word for step in left_of(steps) for word in step.arguments}
        files = {Path(name) for text in study.texts() if any(text in word for word in used) for name in text.split()}
        if missing := sorted(str(file) for file in files if not file.is_file()):
            parser.error(f"--data {given.data} has no {', '.join(missing)}, which these steps need")
        study.root.mkdir(parents=True, exist_ok=True)
        write_whole(study.root / SETTINGS, json.dumps(settings(study), indent=1) + "\n")
        return driver.run(steps, given.minutes, given.jobs)
    left = left_of(steps)
    for step in steps:
        print(f"{'left' if step in left else 'done'}  {step.name}")
    for line in driver.plan(steps):
        print(line)
    return 0


if __name__ == "__main__":
    run_script(lambda: main(sys.argv[1:]))
