"""Models as Marian itself writes them, the form in which OPUS-MT is released: .npz, YAML and SentencePiece files."""
