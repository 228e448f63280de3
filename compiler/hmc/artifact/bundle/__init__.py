"""Bundles: the manifest, its checks, vocabulary shortlists, and where graphs keep their weights."""
