"""Importers: each module lists and reads the runs of one tool (see `runs.Importer`); `importing` writes the runs into MLflow."""
