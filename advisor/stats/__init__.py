"""Statistics that rules share: arrays in, numbers out. Nothing here knows about studies."""
