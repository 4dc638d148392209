"""Recorded studies: small real trainings, each with one cause switched on or off; this cause determines the labels."""
