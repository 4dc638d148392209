"""Determines what caused the first non-finite value of a training, and how certain this cause is."""
