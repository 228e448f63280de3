"""Head budgets: compiling and scoring those that are given, or searching for the one that keeps a limit.

This is the only part of `hmc.benchmark` that compiles, and so the only one that needs the extra `compile`.
"""
