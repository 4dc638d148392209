"""Ways to draw trials from a study's space."""
