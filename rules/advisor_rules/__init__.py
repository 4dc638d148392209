"""The built-in rules, one a file, in a folder a chapter."""

CHAPTERS = ("pipeline", "stability", "space", "curves", "steps", "batch", "decision")
"""Order of the chapters in the report; a folder that is not listed comes after them."""
