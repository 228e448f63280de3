"""Roles of heads: positional, syntactic, rare words (Voita et al. 2019, section 5)."""
