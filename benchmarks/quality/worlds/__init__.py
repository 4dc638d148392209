"""Simulated studies that are logged as real users log them; one module for each group of situations."""
