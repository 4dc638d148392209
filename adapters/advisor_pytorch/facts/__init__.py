"""What is noted of a run besides its metrics: read from the model, the optimizer, the loaders and the machine."""
