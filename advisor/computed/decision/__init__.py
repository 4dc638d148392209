"""Settings that were run several times with different seeds."""
