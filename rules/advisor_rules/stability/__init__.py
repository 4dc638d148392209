"""Rules about unstable training."""
