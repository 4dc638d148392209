"""Converts an experiment to a study. `assemble` combines the decisions; each other module makes one of them."""
