"""Analyses training curves: their last part, their noise, and overfitting."""
