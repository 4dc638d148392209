"""Run these scripts one after another in the same processes, whose start takes seconds."""

from __future__ import annotations

import runpy
from pathlib import Path

from script import end

for name in ("fsdp.py", "saving.py", "ddp.py"):  # the last one has a logger that only rank 0 has
    runpy.run_path(str(Path(__file__).with_name(name)))
end()
