"""Batch size, throughput and timing."""
