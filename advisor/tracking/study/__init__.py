"""Converts an MLflow experiment to a study. The module `assemble` combines the decisions of all other modules. Each of these
modules makes one decision about the trials, metrics or parameters."""
