"""Measuring and comparing the levels of a bundle: quality with its significance, latency and memory.

    from hmc.benchmark import BenchmarkSettings, run_benchmark
    report = run_benchmark(BenchmarkSettings(Path("bundle"), Path("test.en"), Path("test.de")))

`measure_quality` only scores. `compile_and_score` compiles a bundle and scores its levels; `BudgetSearch` finds the
head budget that keeps a limit. These two need the extra `compile`. A public name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hmc.artifact.lazy import lazy_names

if TYPE_CHECKING:
    from hmc.benchmark.budget.compile import CompilePlan, compile_and_score
    from hmc.benchmark.budget.find import BudgetSearch
    from hmc.benchmark.budget.search import Candidate, Limits, Search
    from hmc.benchmark.measure.quality import measure_quality, record_quality
    from hmc.benchmark.measure.text import TestSet, read_sentences
    from hmc.benchmark.report.plots import write_pareto
    from hmc.benchmark.report.results import LevelReport, Report
    from hmc.benchmark.report.tables import tables
    from hmc.benchmark.runner import record, run_benchmark
    from hmc.benchmark.settings import BenchmarkSettings

__all__ = [
    "BenchmarkSettings",
    "BudgetSearch",
    "Candidate",
    "CompilePlan",
    "LevelReport",
    "Limits",
    "Report",
    "Search",
    "TestSet",
    "compile_and_score",
    "measure_quality",
    "read_sentences",
    "record",
    "record_quality",
    "run_benchmark",
    "tables",
    "write_pareto",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "hmc.benchmark.budget.compile": ("CompilePlan", "compile_and_score"),
        "hmc.benchmark.budget.find": ("BudgetSearch",),
        "hmc.benchmark.budget.search": ("Candidate", "Limits", "Search"),
        "hmc.benchmark.measure.quality": ("measure_quality", "record_quality"),
        "hmc.benchmark.measure.text": ("TestSet", "read_sentences"),
        "hmc.benchmark.report.plots": ("write_pareto",),
        "hmc.benchmark.report.results": ("LevelReport", "Report"),
        "hmc.benchmark.report.tables": ("tables",),
        "hmc.benchmark.runner": ("record", "run_benchmark"),
        "hmc.benchmark.settings": ("BenchmarkSettings",),
    },
)
