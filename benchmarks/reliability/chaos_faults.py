"""The faults of `chaos.py`. Each fault begins, lasts some seconds and ends."""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import struct
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from fault_servers import FaultyProxy, TrackingServer

SHIM = Path(__file__).with_name("chaos_shim.c")
WORKS, FULL, READ_ONLY = 0, 1, 2
"""States of a disk."""


def compiler() -> str | None:
    """Return the C compiler, which faults of clocks and disks need; None if there is none."""
    return shutil.which("cc") or shutil.which("gcc")


class FaultControl:
    """Controls the clock and the disk of a group of processes, which run with the variables in `environment`."""

    def __init__(self, folder: Path, name: str, *disk: Path) -> None:
        self._path, library = folder / f"{name}.control", folder / "chaos_shim.so"
        self.set()
        self.environment: dict[str, str] = {}
        if (program := compiler()) is None:
            return
        if not library.exists():
            subprocess.run([program, "-O1", "-shared", "-fPIC", "-o", library, SHIM, "-ldl"], check=True)
        folders = ":".join(map(str, disk))
        self.environment = {"LD_PRELOAD": str(library), "CHAOS_CONTROL": str(self._path), "CHAOS_DISK": folders}

    def set(self, clock_s: float = 0.0, disk: int = WORKS, slow_s: float = 0.0) -> None:
        """Change the clock and the disk of all these processes at once."""
        with open(self._path, "r+b" if self._path.exists() else "wb") as file:
            file.write(struct.pack("3d", clock_s, disk, slow_s))


class DisturbedSystem:
    """The system that faults disturb: a server behind a proxy, and groups of processes."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed
        for name in ("database", "artifacts", "trainings", "disk", "reports"):
            (folder / name).mkdir()
        self.controls = {
            "server": FaultControl(folder, "server", folder / "database", folder / "artifacts"),
            "trainings": FaultControl(folder, "trainings", folder / "disk"),
            "reports": FaultControl(folder, "reports", folder / "reports"),
        }
        self.database = f"sqlite:///{folder / 'database' / 'mlflow.db'}"
        self.server = TrackingServer(self.database, folder, environment=self.controls["server"].environment)
        self.server.start()
        self.proxy = FaultyProxy(self.server.port, seed=seed)
        self.trainers: list[subprocess.Popen[str]] = []
        """Processes of the running trainings."""
        self.killed: set[int] = set()
        """Ids of trainers that were killed."""
        self.report: subprocess.Popen[str] | None = None
        self.counts: Counter[str] = Counter()
        """Number of faults by name."""

    def close(self) -> None:
        """Stop the server."""
        self.proxy.close()
        self.server.kill()


Fault = Callable[[DisturbedSystem, random.Random], Iterator[None]]


def server_killed(stage: DisturbedSystem, _chance: random.Random) -> Iterator[None]:
    stage.server.kill()
    yield
    start(stage.server)


def server_hangs(stage: DisturbedSystem, _chance: random.Random) -> Iterator[None]:
    stage.server.signal(signal.SIGSTOP)
    yield
    stage.server.signal(signal.SIGCONT)


def network_fails(stage: DisturbedSystem, chance: random.Random) -> Iterator[None]:
    stage.proxy.share = chance.uniform(0.1, 1.0)
    yield
    stage.proxy.share = 0.0


def disk_fails(stage: DisturbedSystem, chance: random.Random) -> Iterator[None]:
    control = stage.controls[chance.choice(list(stage.controls))]
    kind = chance.choice([FULL, READ_ONLY, WORKS])
    control.set(disk=kind, slow_s=chance.choice([0.02, 0.2]) if kind == WORKS else 0.0)
    yield
    control.set()


def clock_jumps(stage: DisturbedSystem, chance: random.Random) -> Iterator[None]:
    control = stage.controls[chance.choice(list(stage.controls))]
    control.set(clock_s=chance.choice([-1, 1]) * 10 ** chance.uniform(0, 5))
    yield
    control.set()


def shipper_killed(stage: DisturbedSystem, chance: random.Random) -> Iterator[None]:
    for process in _some_shipper(stage, chance):
        process.kill()
        yield


def shipper_stopped(stage: DisturbedSystem, chance: random.Random) -> Iterator[None]:
    for process in _some_shipper(stage, chance):
        process.suspend()
        yield
        process.resume()


def trainer_killed(stage: DisturbedSystem, chance: random.Random) -> Iterator[None]:
    for trainer in _some_trainer(stage, chance):
        stage.killed.add(trainer.pid)
        trainer.kill()
        yield


def trainer_stopped(stage: DisturbedSystem, chance: random.Random) -> Iterator[None]:
    for trainer in _some_trainer(stage, chance):
        trainer.send_signal(signal.SIGSTOP)
        yield
        trainer.send_signal(signal.SIGCONT)


def report_killed(stage: DisturbedSystem, _chance: random.Random) -> Iterator[None]:
    report = stage.report
    if report is not None:
        stage.killed.add(report.pid)
        report.kill()
        yield


def _some_trainer(stage: DisturbedSystem, chance: random.Random) -> list[subprocess.Popen[str]]:
    running = [trainer for trainer in stage.trainers if trainer.poll() is None]
    return chance.sample(running, min(len(running), 1))


def _some_shipper(stage: DisturbedSystem, chance: random.Random) -> list[psutil.Process]:
    found = [process for trainer in list(stage.trainers) for process in shippers(trainer.pid)]
    return chance.sample(found, min(len(found), 1))


def shippers(trainer: int) -> list[psutil.Process]:
    """Return the shippers of a trainer."""
    try:
        return [child for child in psutil.Process(trainer).children() if "-P" in child.cmdline()]
    except psutil.Error:
        return []


def start(server: TrackingServer) -> None:
    """Start a server, and repeat this if its disk fails at that time."""
    while True:
        try:
            return server.start()
        except (RuntimeError, TimeoutError):
            server.kill()


LANES: dict[str, dict[Fault, float]] = {
    "server": {server_killed: 1, server_hangs: 2, network_fails: 4},
    "machines": {disk_fails: 3, clock_jumps: 1},
    "processes": {shipper_killed: 3, shipper_stopped: 2, trainer_stopped: 3, trainer_killed: 0.4, report_killed: 0.6},
}
"""Faults and their weights. A lane has one fault at a time; lanes fail independently of each other."""


@contextmanager
def chaos(stage: DisturbedSystem) -> Iterator[None]:
    """Let faults happen until the end of the block."""
    over = threading.Event()
    threads = [threading.Thread(target=_cause_faults, args=(stage, lane, over)) for lane in LANES]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _cause_faults(stage: DisturbedSystem, lane: str, ended: threading.Event) -> None:
    chance = random.Random(f"{stage.seed} {lane}")
    weights = LANES[lane]
    while not ended.wait(chance.expovariate(1 / 2.0)):
        (fault,) = chance.choices(list(weights), list(weights.values()))
        steps = fault(stage, chance)
        with contextlib.suppress(StopIteration, psutil.NoSuchProcess):  # there is no process to disturb
            next(steps)
            stage.counts[fault.__name__.replace("_", " ")] += 1
            ended.wait(min(chance.expovariate(1 / 3.0), 15.0))
            next(steps)
