"""Faults of the training pipeline."""
