"""Knowledge distillation: a student learns from a teacher's distributions, word by word, and from its layers."""
