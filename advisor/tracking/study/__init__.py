"""Converts an MLflow experiment to a study: `assemble` combines the other modules, each of which makes one decision."""
