"""Saving checkpoints of a training and resuming from them."""
