"""Distributed trainings: one run for all ranks."""
