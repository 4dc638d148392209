"""Facts about a run other than its metrics: from the model, the optimizer, the loaders and the machine."""
