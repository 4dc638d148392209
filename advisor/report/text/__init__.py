"""Sentences of the report."""
