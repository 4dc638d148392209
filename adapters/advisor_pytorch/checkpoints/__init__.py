"""Saving and resuming a training."""
