"""The claims of the papers, tested: trainings, analyses, and the tables of docs/reproduction.md.

`python -m experiments.papers plan`, `run` and `page`; `sizes` and `studies` hold what is trained and measured, `claims`
what the papers say.
"""
