"""Other engines with the weights of one checkpoint, timed beside HMC."""
