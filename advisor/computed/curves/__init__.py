"""Curves: their last part, their noise, and overfitting."""
