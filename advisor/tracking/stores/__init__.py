"""Where MLflow keeps experiments: databases, servers, folders."""
