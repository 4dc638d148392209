"""The built-in rules: one file per rule, in one folder per chapter."""

CHAPTERS = ("pipeline", "stability", "space", "curves", "steps", "batch", "decision")
"""Order of the chapters in the report; chapters that are not listed come last."""
