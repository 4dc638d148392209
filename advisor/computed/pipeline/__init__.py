"""Computes facts about distributed ranks, batch normalisation, checkpoints and validation data."""
