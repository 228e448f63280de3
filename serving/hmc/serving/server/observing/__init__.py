"""The log: a line for each call if asked, in text or JSON, and texts of callers only if asked."""
