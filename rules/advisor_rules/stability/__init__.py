"""Unstable training."""
