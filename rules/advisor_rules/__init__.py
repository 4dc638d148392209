"""The built-in rules: each file holds one rule, and each folder one chapter of the report."""

CHAPTERS = ("pipeline", "stability", "space", "curves", "steps", "batch", "decision")
"""Order of the chapters in the report; chapters that are not listed come last."""
