"""Vocabulary shortlists: learning which target tokens a source token may need."""
