"""Directories on disk: written whole or not at all, and never over files that HMC does not know."""
