"""Settings of the optimizer."""
