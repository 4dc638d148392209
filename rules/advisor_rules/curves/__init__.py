"""Shapes of training curves."""
