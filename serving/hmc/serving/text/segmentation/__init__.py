"""A text of any length as sentences to translate, and what lies between them and is copied."""
