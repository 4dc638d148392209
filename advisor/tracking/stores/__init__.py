"""Readers for all kinds of MLflow stores. All readers implement the protocol `reading.Store`."""
