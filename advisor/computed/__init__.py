"""Quantities that several rules compute from a study, by chapter."""
