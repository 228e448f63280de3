"""Every number and figure of docs/heads.md, from text to table.

`python -m experiments.heads.run` trains, prunes, measures and writes the tables; `experiments.heads.tables` is its last
stage on its own.
"""
