"""Facts about a run that are not metrics: they come from the model, the optimizer, the loaders and the machine."""
