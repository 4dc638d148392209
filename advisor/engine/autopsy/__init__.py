"""Determines the cause of the first non-finite value of a training run, and how certain the cause is."""
