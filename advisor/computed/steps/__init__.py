"""Finds the learning-rate schedules of trials."""
