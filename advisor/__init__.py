"""Reads an MLflow study as an expert with the Deep Learning Tuning Playbook would, and writes the next one."""

__version__ = "0.1.0"
