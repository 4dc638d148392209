"""Brings finished studies from elsewhere into MLflow, so that they are analysed as if they had been logged there."""
