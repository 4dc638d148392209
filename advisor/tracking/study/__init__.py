"""Converts an MLflow experiment to a study: `assemble` combines the other modules; each module makes one decision."""
