"""Converts an experiment to a study. `assemble` combines decisions about trials, metrics and parameters; each other module makes
one such decision.
"""
