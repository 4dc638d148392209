"""Readers for all kinds of MLflow stores. All readers implement the protocol `store.Store`."""
