"""The parts of `closed_loop.py`: tasks, contenders, results and the table."""
