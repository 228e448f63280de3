"""What several experiments share: reports, worker processes, random checkpoints, reference searches."""
