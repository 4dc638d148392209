"""The search space."""
