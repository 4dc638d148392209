"""Converts an MLflow experiment to a study. `assemble` combines decisions about trials, metrics and parameters; each of the
other modules makes one decision."""
