"""`python -m hmc.cli` is `hmc`."""

from hmc.cli.main import main

main()
