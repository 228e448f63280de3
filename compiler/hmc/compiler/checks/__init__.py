"""Running graphs, and parity of a slim graph with the masked full one."""
