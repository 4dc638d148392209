"""Policies that are trained by rewards."""
