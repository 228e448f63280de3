"""Experiments of the developers: they measure HMC against other engines and against itself.

Each is a module. Run it from the top of a checkout: `python -m experiments.NAME --help`. The package is not part of the
wheel. Users measure their own models with `hmc bench` and `hmc.benchmark`.
"""
