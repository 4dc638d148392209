"""Instability, clipping and warmup."""
