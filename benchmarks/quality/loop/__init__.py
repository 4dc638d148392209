"""The parts of the benchmark `closed_loop.py`: tasks, contenders, results and the table."""
