"""Ends, noise and overfitting of curves."""
