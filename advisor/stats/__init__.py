"""The statistics that rules share: arrays in, numbers out. Nothing here knows of studies."""
