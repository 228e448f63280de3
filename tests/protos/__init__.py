"""Tests of the protocol: its style, its promise, and what a server makes of hostile requests."""
