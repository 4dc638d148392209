"""Readers for every kind of MLflow store, all with the same protocol: `store.Store`."""
