"""Runs the advisor and the hook in a process that lacks what Windows lacks; `test_windows.py` starts it.

    python tests/trust/windows_like.py STORE FOLDER

Libraries are imported first, because they choose their own code for each system. Then POSIX's modules and functions disappear.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import signal
import sys
from pathlib import Path
from typing import Any

LIBRARIES = (
    "joblib lightning.pytorch matplotlib.font_manager mcp.server.mcpserver mlflow mlflow.store.tracking.sqlalchemy_store optuna "
    "pandas psutil pyarrow.dataset pyarrow.parquet ray sklearn.datasets torch.utils.data transformers.trainer uvicorn filelock "
    "platformdirs yaml"
).split()
MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "termios", "tty"}
FUNCTIONS: dict[Any, str] = {
    os: (
        "chown fchown fork forkpty getegid geteuid getgid getloadavg getpgid getpgrp getuid killpg lchown mkfifo nice "
        "register_at_fork sched_getaffinity sched_setaffinity setpgid setsid statvfs sync uname wait3 wait4 "
        "O_DIRECTORY O_NOFOLLOW"
    ),
    signal: ("SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGSTOP SIGUSR1 SIGUSR2 alarm pthread_sigmask setitimer"),
}
PACKAGES = "advisor advisor_rules advisor_logging advisor_pytorch advisor_lightning advisor_transformers".split()


class Absent:
    """A module finder that hides the modules that Windows lacks."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Raise ModuleNotFoundError for a module that Windows lacks."""
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def become_windows() -> None:
    """Remove the modules and functions."""
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Absent())  # type: ignore[arg-type]
    for owner, names in FUNCTIONS.items():
        for name in names.split():
            if hasattr(owner, name):
                delattr(owner, name)
    sys.platform = "win32"


def import_all() -> int:
    """Import every module; return their number."""
    count = 0
    for package in PACKAGES:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
                count += 1
    return count


def train(folder: Path) -> None:
    """Train with the hook; deliver its spool in this process, because the shipper would be an ordinary POSIX process."""
    import torch

    from advisor_logging import recorder, spool, sync
    from advisor_pytorch import TuningLogger

    def unavailable(*_: object) -> None:
        raise OSError("no shipper here")

    recorder.acquire_shipper = unavailable  # type: ignore[assignment]
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    uri = f"sqlite:///{folder / 'hook.db'}"
    with TuningLogger(
        model, optimizer, params={"lr": 0.1}, objective="val/error", experiment="e", tracking_uri=uri, close_timeout_s=0.1,
        spool=folder / "spool", checkpoints=1, checkpoint_dir=folder / "checkpoints", max_train_steps=20,
    ) as log:  # fmt: skip
        for _ in range(20):
            loss = model(torch.randn(8, 4)).pow(2).mean()
            loss.backward()
            optimizer.step()
            log.step(loss)
        log.evaluate({"val/error": 0.5})
    assert spool.user_id()
    (left,) = sync.find_spools([folder / "spool"])
    assert sync.deliver(sync.inspect_spool(left), uri) == ""
    assert not list((folder / "spool").iterdir())


def main() -> None:
    store, folder = sys.argv[1], Path(sys.argv[2])
    become_windows()
    assert import_all() > 300
    train(folder)
    from advisor.cli import main as advisor

    for uri in (f"sqlite:///{store}", f"sqlite:///{folder / 'hook.db'}"):
        with contextlib.suppress(SystemExit):
            advisor(["analyze", "e", "--tracking-uri", uri, "--out", str(folder / "report"), "--quiet"])
        (folder / "report" / "report.html").unlink()
    sys.stdout.write("done\n")


if __name__ == "__main__":
    main()
