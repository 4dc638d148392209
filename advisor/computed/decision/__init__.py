"""Repeated settings."""
