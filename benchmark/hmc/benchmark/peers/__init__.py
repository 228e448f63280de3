"""Other engines with the weights of an HMC checkpoint, measured in the same rounds as HMC's levels."""
