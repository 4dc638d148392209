"""Facts about a run besides its metrics: from the model, the optimizer, the loaders and the machine."""
