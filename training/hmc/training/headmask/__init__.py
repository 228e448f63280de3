"""HeadMask training (Sun et al. 2021): every update masks random or important heads."""
