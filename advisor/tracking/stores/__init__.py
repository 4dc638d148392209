"""Readers for all kinds of MLflow stores. Each reader is a `reading.Store`."""
