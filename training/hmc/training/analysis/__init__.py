"""What the heads of a trained model do: importance, ablation, masking in groups, roles. Data first, then figures."""
