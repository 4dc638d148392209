"""Virtual environments with pinned package versions, and checks that run in them, for `compatibility.py`."""
