"""From an experiment to a study: what each trial, metric and parameter is."""
