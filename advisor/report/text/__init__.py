"""Sentences of the report that are not a rule's text."""
