"""Utilities for atomic files, shell quoting, packaged resources, memory mapping, local processes and Ray clusters."""
