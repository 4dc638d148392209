"""Samplers that draw trials from a study's search space."""
