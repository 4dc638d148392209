"""Computes batch sizes, training throughput and step times."""
