"""MLflow in, a `Study` out: the only part of `advisor` that reads a tracker."""
