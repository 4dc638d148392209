"""Distributed ranks, batch normalisation and validation data."""
