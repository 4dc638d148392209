"""Environments with chosen versions, and what is checked in them; used by `compatibility.py`."""
