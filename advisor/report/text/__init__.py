"""The report's own sentences."""
