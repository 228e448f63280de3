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
    from hmc.benchmark.budget.compile import CompilePlan as CompilePlan
    from hmc.benchmark.budget.compile import compile_and_score as compile_and_score
    from hmc.benchmark.budget.find import BudgetSearch as BudgetSearch
    from hmc.benchmark.budget.search import Candidate as Candidate
    from hmc.benchmark.budget.search import Limits as Limits
    from hmc.benchmark.budget.search import Search as Search
    from hmc.benchmark.measure.quality import measure_quality as measure_quality
    from hmc.benchmark.measure.quality import record_quality as record_quality
    from hmc.benchmark.measure.text import TestSet as TestSet
    from hmc.benchmark.measure.text import read_sentences as read_sentences
    from hmc.benchmark.report.picture import write_picture as write_picture
    from hmc.benchmark.report.results import LevelReport as LevelReport
    from hmc.benchmark.report.results import Report as Report
    from hmc.benchmark.report.tables import tables as tables
    from hmc.benchmark.runner import record as record
    from hmc.benchmark.runner import run_benchmark as run_benchmark
    from hmc.benchmark.settings import BenchmarkSettings as BenchmarkSettings

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "hmc.benchmark.budget.compile": ("CompilePlan", "compile_and_score"),
        "hmc.benchmark.budget.find": ("BudgetSearch",),
        "hmc.benchmark.budget.search": ("Candidate", "Limits", "Search"),
        "hmc.benchmark.measure.quality": ("measure_quality", "record_quality"),
        "hmc.benchmark.measure.text": ("TestSet", "read_sentences"),
        "hmc.benchmark.report.picture": ("write_picture",),
        "hmc.benchmark.report.results": ("LevelReport", "Report"),
        "hmc.benchmark.report.tables": ("tables",),
        "hmc.benchmark.runner": ("record", "run_benchmark"),
        "hmc.benchmark.settings": ("BenchmarkSettings",),
    },
)
