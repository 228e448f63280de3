"""The native executor: step programs of int8 levels in C."""
