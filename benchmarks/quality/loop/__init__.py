"""The parts of `closed_loop.py`: tasks, contenders, what was run, and the table."""
