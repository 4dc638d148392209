"""Main program of the process that judges running trials. `guarding.StudyGuard` starts this program by `python -m
advisor.execution.guard_process`."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from contextlib import suppress
from typing import TextIO

from advisor.execution.guarding import GuardedStudy, reading_to_json, store_read_pause_s
from advisor.model.spec import StudySpec
from advisor.tracking.stores.location import parse_tracking_uri


def main() -> None:
    """Judge the study that the first line of standard input names, until standard input is closed."""
    lower_priority()
    request = json.loads(sys.stdin.readline())
    spec = request.pop("spec")
    guarded = GuardedStudy(
        location=parse_tracking_uri(os.environ["MLFLOW_TRACKING_URI"]),
        spec=None if spec is None else StudySpec.model_validate(spec),
        **request,
    )
    output, sys.stdout = sys.stdout, sys.stderr  # keep standard output for verdicts, because libraries may print to it
    threading.Thread(target=_exit_with_parent, args=(sys.stdin,), daemon=True).start()
    pause = guarded.interval_s
    while True:
        time.sleep(pause)
        began = time.monotonic()
        line = reading_to_json(guarded.read())
        pause = store_read_pause_s(time.monotonic() - began, guarded.interval_s)
        with suppress(BrokenPipeError):
            print(line, file=output, flush=True)


def lower_priority() -> None:
    """Lower the CPU priority of this process; Windows has no such call."""
    if hasattr(os, "nice"):
        with suppress(OSError):
            os.nice(10)


def _exit_with_parent(stdin: TextIO) -> None:
    stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
