"""Directories that CTranslate2's converters write: a binary file of weights, vocabularies and a configuration."""
