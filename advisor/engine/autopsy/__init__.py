"""Says what caused the first non-finite value of a training, and how certain that is."""
