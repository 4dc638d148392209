"""Recorded studies: small real trainings, each with one cause switched on or off, which determines the labels."""
