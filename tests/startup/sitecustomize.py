"""Python runs this file when it starts with this folder in PYTHONPATH, as `tests/conftest.py` sets it.

The garbage collector stays on, but runs less often: it takes a quarter of the CPU time of importing PyTorch, MLflow and the
frameworks.
"""

import gc

gc.set_threshold(100_000, 50, 100)
