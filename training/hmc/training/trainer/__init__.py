"""`hmc train`: from a recipe to a checkpoint."""
