"""Parts of several analyses: models and texts, masks and their scores, attention traces, results and tables."""
