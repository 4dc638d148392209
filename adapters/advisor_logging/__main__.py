"""Deliver a spool that was left behind: `python -m advisor_logging SPOOL`."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from advisor_logging.redact import redact
from advisor_logging.shipper import Shipper, lock
from advisor_logging.spool import read_json


def deliver(folder: Path) -> str | None:
    """Deliver the spool in `folder` to the store it was meant for, or to MLFLOW_TRACKING_URI; gives what went wrong."""
    run = read_json(folder / "run.json")
    if not run:
        return f"{folder} is no spool: it has no run.json"
    uri = os.environ.get("MLFLOW_TRACKING_URI") or str(run["tracking_uri"])
    if "***@" in uri:
        return f"the password of {uri} was not kept: give the whole address in MLFLOW_TRACKING_URI"
    if lock(folder) is None:
        return f"{folder} is being delivered by another process"
    if os.path.isdir(run["cwd"]):
        os.chdir(run["cwd"])  # an address such as sqlite:///mlflow.db is relative to it
    if not Shipper(folder, uri, trainer=None).deliver(linger_s=0.0):
        return f"{redact(uri)} does not take it: {read_json(folder / 'status.json').get('error')}"
    shutil.rmtree(folder)
    return None


def main() -> None:
    """Exit status 0: all delivered, 1: a spool is left or none was given, with one line a problem on standard error."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    if len(sys.argv) < 2:
        sys.exit("usage: python -m advisor_logging SPOOL...")
    problems = [problem for path in sys.argv[1:] if (problem := deliver(Path(path).absolute()))]
    sys.exit("\n".join(problems) or None)


if __name__ == "__main__":
    main()
