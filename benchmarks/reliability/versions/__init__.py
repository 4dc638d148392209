"""Environments with chosen versions, and checks that run in them; used by `compatibility.py`."""
