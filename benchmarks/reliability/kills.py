"""What `kill -9` leaves of `analyze`, `import`, `sync` and `run`: each is killed at a random moment, looked at, and repeated.

    python benchmarks/reliability/kills.py [--kills 100] [--minutes M] [--seed 0] [--only COMMAND...]

Every second kill comes at a time, the others at an operation: a file opened for writing, renamed or removed, a database opened, a
request sent, a process begun; both are drawn evenly over a run that nobody kills. *Half-written* counts files under their own
names, and runs in the store that say they are whole, which are neither as before nor as after; *lost* and *doubled* is what the
repeated command's result lacks, or has too many, against that of one that was never killed; *leftovers* are files that are there
after the repeated command and not after one that was never killed; *failed* counts repeated commands that did not succeed.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

import psutil

CHANGING = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "sqlite3.connect", "http.client.send", "subprocess.Popen")
"""Audit events of operations that change something, beside files opened for writing."""
PRELOADED = [
    "advisor.cli.main",
    "advisor.analysis",
    "advisor.cli.run",
    "advisor.interop.importers.sql_writer",
    "mlflow",
]
PRELOADED += ["advisor.interop.importers.client_writer", "advisor.interop.importers.tabular", "advisor.execution"]
PRELOADED += [
    "advisor.report.build",
    "advisor.report.formats.sarif",
    "advisor.execution.engines.local",
    "advisor_logging.sync",
]
PRELOADED += ["mlflow.store.tracking.sqlalchemy_store", "mlflow.store.artifact.local_artifact_repo"]


@dataclass
class Seen:
    """What was found after kills, and after the commands that followed them."""

    kills: int = 0
    half: int = 0
    lost: int = 0
    doubled: int = 0
    leftovers: int = 0
    failed: int = 0
    said: list[str] = field(default_factory=list)
    """What failed commands said."""

    @property
    def clean(self) -> bool:
        """Whether nothing went wrong."""
        return not (self.half or self.lost or self.doubled or self.leftovers or self.failed)


class Victim(Protocol):
    """A command and what it works on."""

    def renew(self) -> None:
        """Everything as it is before the command."""

    def command(self) -> tuple[Sequence[str], Mapping[str, str]]:
        """Its words, and what is added to its environment."""

    def at_work(self) -> list[psutil.Process]:
        """Processes that the command began and that outlive it."""

    def torn(self) -> int:
        """How many half-written things there are after a kill."""

    def result(self) -> Mapping[str, object]:
        """What the command made, by name."""

    def files(self) -> set[str]:
        """All files there are."""


# --- a command in a process of its own ------------------------------------------------------------------------------------------


def _run(words: Sequence[str], environment: Mapping[str, str], said: str, count: Any, kill_at: int) -> None:
    """In the process: the command, killed at its `kill_at`th operation."""
    os.environ.update(environment)
    os.chdir(Path(said).parent)
    output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(output, stream)
    tempfile.tempdir = None

    def watch(event: str, given: tuple[Any, ...]) -> None:
        changes = event in CHANGING or (event == "open" and isinstance(given[2], int) and given[2] & os.O_ACCMODE)
        if changes:
            count.value += 1
            if count.value == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    from advisor.cli import main

    main(list(words))


class Stage:
    """Runs commands; each is a fork of a process that has imported all of it, so that kills hit its work and not its imports."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)

    def start(self, victim: Victim, kill_at: int = 0) -> tuple[BaseProcess, Any]:
        """The command's process, and the number of its operations so far."""
        words, environment = victim.command()
        count = self._context.Value("q", 0, lock=False)
        process = self._context.Process(target=_run, args=(words, environment, str(self.log), count, kill_at))
        process.start()
        return process, count

    @property
    def log(self) -> Path:
        return self._folder / "said.log"

    def whole(self, victim: Victim) -> tuple[int | None, float, int]:
        """Run a command to its end: exit status, seconds, operations."""
        began = time.monotonic()
        process, count = self.start(victim)
        process.join(300)
        if process.exitcode is None:
            process.kill()
            process.join()
        return process.exitcode, time.monotonic() - began, int(count.value)


def kill(victim: Victim, kills: int, chance: random.Random, stage: Stage, until: float = math.inf) -> Seen:
    """Kill a command so many times, or until the clock says so much, and repeat it each time."""
    seen = Seen()
    victim.renew()
    stage.whole(victim)  # the first one of all warms up what later ones find warm
    victim.renew()
    status, seconds, operations = stage.whole(victim)
    assert status == 0, stage.log.read_text()
    wanted, ordinary = victim.result(), victim.files()
    while seen.kills < kills and time.monotonic() < until:
        victim.renew()
        by_time = seen.kills % 2 == 0
        if not _kill_once(victim, seconds if by_time else 0.0, operations, chance, stage):
            seconds *= 0.95 if by_time else 1.0
            continue
        seen.kills += 1
        seen.half += victim.torn()
        status, *_ = stage.whole(victim)
        if outlived := victim.at_work():
            psutil.wait_procs(outlived, timeout=60)
            status, *_ = stage.whole(victim)
        if status != 0:
            seen.failed += 1
            seen.said.append(stage.log.read_text()[-500:])
        found = victim.result()
        lost = [name for name, value in wanted.items() if found.get(name) != value]
        seen.lost += len(lost)
        seen.doubled += len(found.keys() - wanted.keys())
        seen.leftovers += len(left := victim.files() - ordinary)
        seen.said += [*sorted(left), *(f"lost: {name}: {str(found.get(name))[:300]}" for name in lost)]
    return seen


def _kill_once(victim: Victim, seconds: float, operations: int, chance: random.Random, stage: Stage) -> bool:
    """Kill it at a random time, or, where that is 0, at a random operation; in half of the cases with all that it began.

    Says whether it did not end before.
    """
    process, _ = stage.start(victim, 0 if seconds else chance.randint(1, operations))
    process.join(chance.uniform(0.0, seconds) if seconds else 300)
    process.kill()
    process.join()
    for other in victim.at_work() if chance.random() < 0.5 else ():
        with contextlib.suppress(psutil.NoSuchProcess):
            other.kill()
    return process.exitcode == -signal.SIGKILL


# --- the table ------------------------------------------------------------------------------------------------------------------


def main() -> None:
    from kill_victims import VICTIMS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop killing a command after so long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=list(VICTIMS), default=list(VICTIMS))
    args = parser.parse_args()
    columns = ("kills", "half-written", "lost", "doubled", "leftovers", "failed")
    print(f"{'command':28}" + "".join(f"{name:>14}" for name in columns))
    for name in args.only:
        seen = once(name, VICTIMS[name], args.kills, args.seed, args.minutes)
        numbers = (seen.kills, seen.half, seen.lost, seen.doubled, seen.leftovers, seen.failed)
        print(f"{name:28}" + "".join(f"{number:>14}" for number in numbers), flush=True)
        for line in dict.fromkeys(seen.said):
            print(f"    {line}", flush=True)


Make = Callable[[Path], contextlib.AbstractContextManager[Victim]]


def once(name: str, make: Make, kills: int, seed: int, minutes: float = math.inf) -> Seen:
    """Kill one command, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="advisor-kills-") as folder:
        stage = Stage(Path(folder))
        with make(Path(folder) / "work") as victim:
            return kill(victim, kills, random.Random(f"{name} {seed}"), stage, time.monotonic() + 60 * minutes)


if __name__ == "__main__":
    main()
