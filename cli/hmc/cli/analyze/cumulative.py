"""`hmc analyze cumulative`: groups of heads masked one after another."""

from __future__ import annotations

from hmc.cli.analyze.masked_groups import masking_command

command = masking_command(
    "cumulative",
    "Mask group after group, most important first and least important first: two curves with 95 % bands.",
)
