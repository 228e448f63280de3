"""Models of other programs become checkpoints: the form is recognised, and each form has its reader."""
