"""`hmc bench self-test`: whether the benchmark finds what is known to be there."""

from __future__ import annotations

from typing import Annotated

import typer


def command(as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False) -> None:
    """Measure fake engines of known latency, and compare the results. The exit code is 3 if anything is wrong.

    Only the first check uses the machine's clock. If that check alone fails, this machine is too busy to measure on.
    """
    from dataclasses import asdict

    from hmc.benchmark.report.results import json_text
    from hmc.benchmark.report.tables import table_of
    from hmc.benchmark.self_test import self_test
    from hmc.cli.bench.compare import WORSE
    from hmc.cli.common.consoles import open_console
    from hmc.cli.common.progress import steps

    with steps(open_console(stderr=True)) as progress:
        checks = self_test(progress=progress)
    if as_json:
        typer.echo(json_text([asdict(check) for check in checks]), nl=False)
    else:
        table = table_of("Self-test", ("check",), ("expected", "found", ""))
        for check in checks:
            table.add_row(check.name, check.expected, check.found, "ok" if check.passed else "WRONG")
        open_console().print(table)
    if not all(check.passed for check in checks):
        raise SystemExit(WORSE)
