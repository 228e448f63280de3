"""`hmc translate --engine`: checks the options, runs the bulk translation and prints its result."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import typer

from hmc.artifact.bundle.manifest import read_manifest
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.precisions import PRECISIONS
from hmc.cli.common.backends import code_of, level_of
from hmc.cli.common.consoles import open_console
from hmc.cli.common.options import BackendOptions, BulkOptions, chosen_server
from hmc.cli.common.outputs import check_run_folder
from hmc.cli.common.progress import translating
from hmc.engine.runtime.threads import cores
from hmc.pipelines.bulk.corpus import is_url
from hmc.pipelines.bulk.engines import BulkLevel, EngineName
from hmc.pipelines.bulk.run import FAILURES, Translated, translate_corpus
from hmc.pipelines.bulk.settings import BulkSettings

if TYPE_CHECKING:
    from hmc.engine.requests.options import DecodeOptions


def write_bulk(
    bulk: BulkOptions, where: BackendOptions, workers: int | None, files: Sequence[str], out: str | None,
    options: DecodeOptions, prefix: str, json_output: bool,
) -> None:  # fmt: skip
    """Translates the files into the folder `out`, and prints the result."""
    engine = _engine(bulk.engine)
    if where.bundle is None or chosen_server(where.server, where.bundle) is not None:
        raise InvalidRequestError("--engine translates with a bundle: give --bundle DIR, and no --server")
    where.check_no_server("--engine")
    if where.executor != "auto":
        raise InvalidRequestError("--engine chooses the executor itself: leave --executor out")
    if not files or "-" in files or out is None:
        raise InvalidRequestError("--engine needs --source FILE and --out DIR: a run that goes on reads FILE again")
    if not is_url(out):
        check_run_folder(Path(out))
    manifest = read_manifest(where.bundle)
    selector = where.selector()
    name = level_of(manifest, selector, where.device) or manifest.default_level
    on_cpu = PRECISIONS[manifest.level(name).precision].device == "cpu"
    level = BulkLevel(where.bundle, name, where.device, where.threads, _workers(engine, workers, on_cpu=on_cpu))
    settings = BulkSettings(
        options, prefix, code_of(where.bundle, manifest, selector), bulk.field,
        bulk.output or "text",  # type: ignore[arg-type]  # checked there
        2000 if bulk.shard_lines is None else bulk.shard_lines,
    )  # fmt: skip
    with translating(open_console(stderr=True)) as (report, step):
        found = translate_corpus(files, out, level, settings, engine, report=report, step=step)
    if json_output:
        typer.echo(json.dumps(found.to_json()))
    else:
        typer.echo(_said(out, found))
    if found.failed:
        sys.stderr.write(f"hmc: {found.failed:,} lines were not translated; {out}/{FAILURES} has numbers and reasons\n")


def one_file(files: Sequence[str] | None) -> Path | None:
    """The file of a translation without --engine. Raises InvalidRequestError for several, and for a URL."""
    if not files:
        return None
    if len(files) > 1 or is_url(files[0]):
        raise InvalidRequestError("--source is one file of this machine, unless --engine is given: add --engine local")
    return Path(files[0])


def _engine(name: str | None) -> EngineName:
    for known in get_args(EngineName):
        if name == known:
            return known  # type: ignore[no-any-return]
    raise InvalidRequestError(f"--engine {name}: choose {' or '.join(get_args(EngineName))}")


def _workers(engine: str, workers: int | None, *, on_cpu: bool) -> int:
    """Without --workers, one for each core of this machine, or one on a GPU; of Ray one for each core of a cluster."""
    if workers is not None and workers < 1:
        raise InvalidRequestError(f"--workers {workers}: choose 1 or more")
    if workers is not None:
        return workers
    if engine != "local":
        return 0
    return cores() if on_cpu else 1


def _said(out: str, found: Translated) -> str:
    speed = f", {found.lines_per_second:,.0f} lines/s" if found.lines_now else ", nothing was left to do"
    said = [f"{out}: {found.lines:,} lines in {found.shards:,} files{speed}"]
    for number, what in (
        (found.failed, "not translated"),
        (found.cut, "too long for the model: only their beginning is translated"),
        (found.unfinished, "with a translation that was stopped at its greatest length"),
    ):
        if number:
            said.append(f"  {number:,} {what}")
    return "\n".join(said)
