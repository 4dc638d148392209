"""Analyses training instability, gradient clipping and learning-rate warmup."""
