"""Utilities for atomic file writes, shell quoting, packaged resources, memory mapping, local processes and Ray clusters."""
