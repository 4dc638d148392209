"""Metric points: collected, cached, spilled, read from sidecars."""
