"""Sequence-level knowledge distillation: a teacher's translations of plain text, as training text for a student."""
