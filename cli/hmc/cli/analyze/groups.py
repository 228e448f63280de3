"""`hmc analyze groups`: heads in groups by importance, one group masked at a time."""

from __future__ import annotations

from hmc.cli.analyze.masked_groups import masking_command

command = masking_command(
    "groups", "Divide the heads into groups by importance and mask one group at a time: loss and BLEU."
)
