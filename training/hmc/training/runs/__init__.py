"""The parts that all training runs share: recipe, run folder, saved state, log, processes, optimiser updates."""
