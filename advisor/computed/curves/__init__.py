"""Quantities computed from trials' curves: the last part, the noise, and overfitting."""
