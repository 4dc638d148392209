"""Analyses policies that are trained by rewards."""
