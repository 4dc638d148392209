"""Readers for all kinds of MLflow stores, which implement the same protocol: `store.Store`."""
