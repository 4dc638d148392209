"""Kills `analyze`, `import`, `sync` and `run` with SIGKILL at random moments, repeats them and counts the damage.

    python benchmarks/reliability/kills.py [--kills 100] [--minutes M] [--seed 0] [--only COMMAND...]

Every second kill happens at a random time, the others at a random operation: a file opened for writing, renamed or removed, a
database opened, a request sent, a process started. Times and operations are distributed uniformly over an undisturbed run.
*Half-written* counts files and completed runs that differ from both the state before and the state after the command. *Lost* and
*doubled* count results that the repeated command lacks, or has in addition, compared with an undisturbed run. *Leftovers* are files
that exist after the repeated command but not after an undisturbed run. *Failed* counts repeated commands that failed.
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
"""Audit events of operations that change something; opening a file for writing also counts as such an operation."""
PRELOADED = (
    "mlflow mlflow.store.tracking.sqlalchemy_store mlflow.store.artifact.local_artifact_repo advisor_logging.sync "
    "advisor.analysis advisor.cli.main advisor.cli.run advisor.execution advisor.execution.engines.local "
    "advisor.interop.importers.writers advisor.interop.importers.tabular "
    "advisor.report.build advisor.report.formats.sarif"
).split()


@dataclass
class Damage:
    """Counts of damage, after kills and after the repeated commands."""

    kills: int = 0
    half: int = 0
    lost: int = 0
    doubled: int = 0
    leftovers: int = 0
    failed: int = 0
    messages: list[str] = field(default_factory=list)
    """Output of failed commands, and the names of lost results and leftover files."""

    @property
    def clean(self) -> bool:
        return not (self.half or self.lost or self.doubled or self.leftovers or self.failed)


class Victim(Protocol):
    """A command to kill, together with its data."""

    def renew(self) -> None:
        """Restore the state from before the command."""

    def command(self) -> tuple[Sequence[str], Mapping[str, str]]:
        """Return the command's arguments and additional environment variables."""

    def at_work(self) -> list[psutil.Process]:
        """Return those processes of the command that may outlive it."""

    def torn(self) -> int:
        """Count the half-written files or runs after a kill."""

    def result(self) -> Mapping[str, object]:
        """Return the command's results by name."""

    def files(self) -> set[str]:
        """Return all files that exist in the command's folder."""


# --- a command in a process of its own ------------------------------------------------------------------------------------------


def _run(words: Sequence[str], environment: Mapping[str, str], log: str, count: Any, kill_at: int) -> None:
    """Run the command in this process, and kill the process at operation number `kill_at`."""
    os.environ.update(environment)
    os.chdir(Path(log).parent)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(output, stream)
    tempfile.tempdir = None

    def watch(event: str, values: tuple[Any, ...]) -> None:
        changes = event in CHANGING or (event == "open" and isinstance(values[2], int) and values[2] & os.O_ACCMODE)
        if changes:
            count.value += 1
            if count.value == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    from advisor.cli import main

    main(list(words))


class Stage:
    """Runs commands as forks of a process that has imported everything, so that kills hit the command's work and not its
    imports."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)

    def start(self, victim: Victim, kill_at: int = 0) -> tuple[BaseProcess, Any]:
        """Start the command; return its process and a counter of the operations that it has made."""
        words, environment = victim.command()
        count = self._context.Value("q", 0, lock=False)
        process = self._context.Process(target=_run, args=(words, environment, str(self.log), count, kill_at))
        process.start()
        return process, count

    @property
    def log(self) -> Path:
        return self._folder / "output.log"

    def whole(self, victim: Victim) -> tuple[int | None, float, int]:
        """Run the command to its end; return its exit status, its duration in seconds and its number of operations."""
        began = time.monotonic()
        process, count = self.start(victim)
        process.join(300)
        if process.exitcode is None:
            process.kill()
            process.join()
        return process.exitcode, time.monotonic() - began, int(count.value)


def kill(victim: Victim, kills: int, chance: random.Random, stage: Stage, deadline: float = math.inf) -> Damage:
    """Kill the command `kills` times, or until the monotonic clock shows `deadline`, and repeat it after each kill."""
    damage = Damage()
    victim.renew()
    stage.whole(victim)  # fill caches
    victim.renew()
    status, seconds, operations = stage.whole(victim)
    assert status == 0, stage.log.read_text()
    wanted, ordinary = victim.result(), victim.files()
    while damage.kills < kills and time.monotonic() < deadline:
        victim.renew()
        by_time = damage.kills % 2 == 0
        if not _kill_once(victim, seconds if by_time else 0.0, operations, chance, stage):
            seconds *= 0.95 if by_time else 1.0
            continue
        damage.kills += 1
        damage.half += victim.torn()
        status, *_ = stage.whole(victim)
        if survivors := victim.at_work():
            psutil.wait_procs(survivors, timeout=60)
            status, *_ = stage.whole(victim)
        if status != 0:
            damage.failed += 1
            damage.messages.append(stage.log.read_text()[-500:])
        repeated = victim.result()
        lost = [name for name, value in wanted.items() if repeated.get(name) != value]
        damage.lost += len(lost)
        damage.doubled += len(repeated.keys() - wanted.keys())
        damage.leftovers += len(leftovers := victim.files() - ordinary)
        damage.messages += [*sorted(leftovers), *(f"lost: {name}: {str(repeated.get(name))[:300]}" for name in lost)]
    return damage


def _kill_once(victim: Victim, seconds: float, operations: int, chance: random.Random, stage: Stage) -> bool:
    """Kill the command at a random time up to `seconds`, or at a random operation if `seconds` is 0; return whether it was killed.

    In half of the cases, also kill the command's surviving processes.
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
    parser.add_argument("--minutes", type=float, default=math.inf, help="maximum minutes for each command")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=list(VICTIMS), default=list(VICTIMS))
    args = parser.parse_args()
    columns = ("kills", "half-written", "lost", "doubled", "leftovers", "failed")
    print(f"{'command':28}" + "".join(f"{name:>14}" for name in columns))
    for name in args.only:
        damage = kill_command(name, VICTIMS[name], args.kills, args.seed, args.minutes)
        numbers = (damage.kills, damage.half, damage.lost, damage.doubled, damage.leftovers, damage.failed)
        print(f"{name:28}" + "".join(f"{number:>14}" for number in numbers), flush=True)
        for line in dict.fromkeys(damage.messages):
            print(f"    {line}", flush=True)


Make = Callable[[Path], contextlib.AbstractContextManager[Victim]]


def kill_command(name: str, make: Make, kills: int, seed: int, minutes: float = math.inf) -> Damage:
    """Kill one command repeatedly in a new temporary folder."""
    with tempfile.TemporaryDirectory(prefix="advisor-kills-") as folder:
        stage = Stage(Path(folder))
        with make(Path(folder) / "work") as victim:
            return kill(victim, kills, random.Random(f"{name} {seed}"), stage, time.monotonic() + 60 * minutes)


if __name__ == "__main__":
    main()
