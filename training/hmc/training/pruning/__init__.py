"""`hmc prune`: closing attention heads and feed-forward neurons while fine-tuning."""
