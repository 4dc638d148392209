"""Small trainings that log to a plain MLflow store as users do: metrics and parameters, without our hook or a status tag."""
