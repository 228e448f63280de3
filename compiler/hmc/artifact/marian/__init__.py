"""Hugging Face MarianMT directories in the layout of OPUS-MT: read into a checkpoint, and written from one."""
