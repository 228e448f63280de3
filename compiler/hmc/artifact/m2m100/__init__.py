"""M2M100 and NLLB directories of Transformers: norms first, a token for each language, fairseq's positions."""
