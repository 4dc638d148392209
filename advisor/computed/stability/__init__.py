"""Training instability, gradient clipping and learning-rate warmup."""
