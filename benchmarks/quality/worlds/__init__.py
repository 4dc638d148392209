"""Simulated studies as users really log them, one module for each group of situations."""
