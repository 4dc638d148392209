"""Each importer lists and reads the runs of one tool (see `runs.Importer`), and `importing` writes the runs into MLflow."""
