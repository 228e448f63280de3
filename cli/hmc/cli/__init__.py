"""The `hmc` command: a thin file for each command, whose heavy imports are inside its function."""
