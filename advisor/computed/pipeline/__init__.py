"""Ranks, norms, validation data."""
