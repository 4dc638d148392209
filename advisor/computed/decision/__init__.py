"""Estimates the variation between repeats: runs of one setting with different seeds."""
