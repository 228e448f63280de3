"""Tokenizers: their files, and text to token ids with SentencePiece."""
