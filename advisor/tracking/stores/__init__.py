"""The stores of MLflow, all read through one protocol: `store.Store`."""
