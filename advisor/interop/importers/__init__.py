"""Importers. Each module lists and reads the runs of one tool (see `runs.Importer`); `importing` writes them into MLflow."""
