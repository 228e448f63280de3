"""What `hmc compile` prints: the levels of the bundle, and the levels that a search tried."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from hmc.artifact.bundle.manifest import Manifest
    from hmc.benchmark.budget.find import BudgetSearch


def show_search(console: Console, search: BudgetSearch) -> None:
    """Prints a table for each precision that was searched, and how the times were measured.

    If any search found something, the reasons why another did not are notes. Otherwise they are in the error.
    """
    from hmc.benchmark.budget.report import refusal, table, warning
    from hmc.cli.common.consoles import note

    found = any(refusal(done) is None for done in search.searches.values())
    for done in search.searches.values():
        console.print(table(done))
        reason = refusal(done) if found else None
        if text := warning(done) or (reason and f"nothing found. {reason}"):
            note(console, f"note: {text}\n")
    if search.searches:
        note(console, f"p50: {search.timed}")


def show_levels(manifest: Manifest, out: Path) -> None:
    """Prints one line for the bundle and one for each level."""
    typer.echo(f"{out}: version {manifest.version}, {manifest.source_language} to {manifest.target_language}")
    width = max(12, *(len(level.name) for level in manifest.levels))
    for level in manifest.levels:
        quality = f"  BLEU {level.quality.bleu:.2f} ({level.quality.bleu_delta:+.2f})" if level.quality else ""
        size = f"{level.parameters:>12,} parameters  {level.bytes / 2**20:7.1f} MiB"
        default = "  default" if level.name == manifest.default_level else ""
        kept = f"  in fp32: {', '.join(level.fp32_layers)}" if level.fp32_layers else ""
        typer.echo(f"  {level.name:{width}} {level.heads:4} heads  {level.precision}  {size}{quality}{default}{kept}")
