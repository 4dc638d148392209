"""Sentences of the report that do not come from rules."""
