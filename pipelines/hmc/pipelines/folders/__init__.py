"""Folders of long jobs: files written whole or not at all, and a first file that says what the folder is of."""
