"""Batch size and throughput."""
