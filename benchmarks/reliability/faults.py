"""Compares logged with stored points when the store, the disk, the network or a process fails.

    python benchmarks/reliability/faults.py [--steps 3000] [--backend sqlite postgresql] [--only FAULT...]

Each line is a real training with the hook, a real `mlflow server` with a real database, and one fault. *Logged* is the number of
points that follow from the training's second record and the windows of the contract; *found* is the number of rows in the database
at the end; *same* says whether these are the same points, each stored once, and whether the sidecar has every recorded value.
*Step* is the median duration of a step (forward, backward and hook), *slowest* the longest duration, and *delivered* the seconds
from the last step until the store is complete.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy
from fault_servers import FaultyProxy, Postgres, TrackingServer, until

from advisor import contract
from advisor_logging.spool import EVENT, STEPS, SpoolFrame, SpoolPosition, _complete_frames
from advisor_logging.table import RowWindowReducer

Key = tuple[str, int, int, str]
"""(metric, step, milliseconds since 1970, value as text) of one point."""
TRAINING = Path(__file__).with_name("fault_training.py")


@dataclass
class Training:
    """A training that runs in a separate process."""

    process: subprocess.Popen[str]
    folder: Path
    step: int = -1
    shipper: int = 0
    ended: float = field(default=0.0)

    def follow(self) -> None:
        """Read the training's output until it ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            what, number = line.split()
            if what == "process":
                self.shipper = int(number)
            else:
                self.step = int(number)
        self.ended = time.monotonic()

    def until(self, step: int) -> None:
        """Wait until the training has made the given step."""
        until(lambda: self.step >= step or self.process.poll() is not None, 300, f"step {step}")

    @property
    def spools(self) -> list[Path]:
        return [path for path in (self.folder / "spool").glob("*") if path.is_dir() and path.name != "lost+found"]


@dataclass
class Stage:
    """The servers and the folder that a training uses."""

    server: TrackingServer
    database: str
    folder: Path
    steps: int
    postgres: Postgres | None = None
    proxy: FaultyProxy | None = None

    def train(self, name: str, uri: str | None = None, timeout_s: float = 120.0) -> Training:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        command = [sys.executable, str(TRAINING), uri or self.server.uri, str(folder), "--steps", str(self.steps)]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
        process = subprocess.Popen(
            [*command, "--timeout-s", str(timeout_s)], stdout=subprocess.PIPE, text=True, env=environment, cwd=folder
        )
        training = Training(process, folder)
        threading.Thread(target=training.follow, daemon=True).start()
        return training

    @contextmanager
    def behind_proxy(self, share: float = 0.0) -> Iterator[FaultyProxy]:
        self.proxy = proxy = FaultyProxy(self.server.port, share, seed=0)
        try:
            yield proxy
        finally:
            proxy.close()


# --- faults ---------------------------------------------------------------------------------------------------------------------


def no_fault(stage: Stage) -> Training:
    return stage.train("nothing")


def server_late(stage: Stage) -> Training:
    stage.server.kill()
    training = stage.train("late")
    training.until(int(0.6 * stage.steps))
    stage.server.start()
    return training


def server_killed(stage: Stage) -> Training:
    training = stage.train("killed")
    training.until(stage.steps // 3)
    stage.server.kill()
    training.until(2 * stage.steps // 3)
    stage.server.start()
    return training


def server_hangs(stage: Stage) -> Training:
    training = stage.train("hangs")
    training.until(stage.steps // 3)
    stage.server.signal(signal.SIGSTOP)
    training.until(stage.steps - 1)
    time.sleep(3.0)
    stage.server.signal(signal.SIGCONT)
    return training


def answers_fail(stage: Stage) -> Training:
    with stage.behind_proxy(share=0.4) as proxy:
        training = stage.train("answers", proxy.uri)
        training.process.wait()
        until(lambda: not training.spools, 300, "the delivery")
    return training


def database_restarts(stage: Stage) -> Training:
    assert stage.postgres is not None
    training = stage.train("database")
    training.until(stage.steps // 3)
    stage.postgres.stop()
    training.until(2 * stage.steps // 3)
    stage.postgres.start()
    return training


def shipper_killed(stage: Stage) -> Training:
    """Kill the shipper after the server has stored a batch, but before the shipper gets the response."""
    with stage.behind_proxy() as proxy:
        training = stage.train("shipper", proxy.uri)
        seen = Counter[str]()

        def kill(path: str) -> None:
            seen[path] += path.endswith("log-batch")
            if seen[path] == 4:
                os.kill(training.shipper, signal.SIGKILL)

        proxy.on_answer = kill
        training.process.wait()
        until(lambda: not training.spools, 300, "the delivery")
        assert seen.total() >= 4, "the shipper was not killed"
    return training


def trainer_killed(stage: Stage) -> Training:
    training = stage.train("trainer")
    training.until(2 * stage.steps // 3)
    training.process.kill()
    return training


def server_disk_full(stage: Stage) -> Training:
    """Fill the disk of the database, and free it later. The folder of the database needs a separate disk."""
    ballast = stage.folder / "database" / "ballast"
    training = stage.train("disk")
    training.until(stage.steps // 3)
    with suppress(OSError), open(ballast, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    training.until(2 * stage.steps // 3)
    ballast.unlink()
    return training


FAULTS: dict[str, Callable[[Stage], Training]] = {
    "none": no_fault,
    "server down at start": server_late,
    "server killed -9, restarted": server_killed,
    "server hangs (SIGSTOP)": server_hangs,
    "500, 429, resets, slow": answers_fail,
    "database stopped, restarted": database_restarts,
    "server's disk full": server_disk_full,
    "shipper killed -9 before ack.": shipper_killed,
    "trainer killed -9": trainer_killed,
}


# --- counts ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """The points that a training logged, and those that the store has."""

    steps: int
    logged: Counter[Key]
    found: Counter[Key]
    recorded: int
    """Number of values that the training recorded, before they are reduced to windows."""
    in_sidecar: int
    tags: dict[str, str]
    delivered_s: float
    """Seconds from the last training step to the end of the delivery."""
    step_us: float
    slowest_ms: float
    warnings: list[str]

    @property
    def same(self) -> bool:
        """Whether every point is in the store exactly once, and every recorded value is in the sidecar."""
        return self.logged == self.found and self.recorded == self.in_sidecar


def wait_for_delivery(stage: Stage, training: Training, within_s: float = 300.0) -> Result:
    """Wait until the training's points are delivered, and count them."""
    training.process.wait()
    begun = time.monotonic()
    until(lambda: not training.spools, within_s, "the delivery")
    delivered = time.monotonic() - begun
    frames = list(_read_recorded(training.folder / "tee"))
    report = training.folder / "report.json"
    durations = json.loads(report.read_text()) if report.exists() else {}
    run_id, tags, stored = _read_database(stage.database, _first_ms(frames))
    log = training.folder / "training.log"
    return Result(
        steps=int(durations.get("steps", training.step + 1)),
        logged=_points(frames),
        found=stored,
        recorded=sum(len(columns) * len(steps) for steps, _, columns in (f.columns() for f in frames)),
        in_sidecar=_rows(stage.folder / "artifacts", run_id),
        tags=tags,
        delivered_s=delivered + float(durations.get("close_s", 0.0)),
        step_us=float(durations.get("step_us", "nan")),
        slowest_ms=float(durations.get("slowest_ms", "nan")),
        warnings=log.read_text().splitlines() if log.exists() else [],
    )


def _read_recorded(path: Path) -> Iterator[SpoolFrame]:
    for kind, payload, _ in _complete_frames(path.read_bytes()):
        if kind != EVENT:
            yield SpoolFrame(kind, payload, SpoolPosition(), SpoolPosition())


def _first_ms(frames: list[SpoolFrame]) -> int:
    return min(int(frame.columns()[1][0]) for frame in frames)


def _points(frames: list[SpoolFrame]) -> Counter[Key]:
    """Return the points that the store should have; they are computed from the rows, independently of the shipper."""
    windows, points = RowWindowReducer(), []
    for frame in frames:
        for step, time_ms, values in frame.rows():
            if frame.kind == STEPS:
                points += [(p.name, p.step, p.time_ms, repr(p.value)) for p in windows.add_row(step, time_ms, values)]
            else:
                points += [(name, step, time_ms, repr(value)) for name, value in values.items()]
    points += [(p.name, p.step, p.time_ms, repr(p.value)) for p in windows.close()]
    return Counter(points)


def _read_database(uri: str, first_ms: int) -> tuple[str, dict[str, str], Counter[Key]]:
    """Return the id, the tags and all metric rows of the run whose first point has this time."""
    engine = sqlalchemy.create_engine(uri)
    with engine.connect() as connection:

        def select(query: str, **values: Any) -> list[Any]:
            return list(connection.execute(sqlalchemy.text(query), values))

        ids = select("SELECT DISTINCT run_uuid FROM metrics WHERE timestamp = :t", t=first_ms)
        assert len(ids) == 1, f"{len(ids)} runs have the training's first point"
        id = ids[0][0]
        rows = select("SELECT key, step, timestamp, value, is_nan FROM metrics WHERE run_uuid = :id", id=id)
        tags = dict(tuple(row) for row in select("SELECT key, value FROM tags WHERE run_uuid = :id", id=id))
    engine.dispose()
    return id, tags, Counter((k, s, t, "nan" if is_nan else repr(float(v))) for k, s, t, v, is_nan in rows)


def _rows(artifacts: Path, run_id: str) -> int:
    import pyarrow.parquet as pq

    name = contract.SIDECAR_PATH.rpartition("/")[2]
    return sum(pq.read_metadata(path).num_rows for path in artifacts.glob(f"*/{run_id}/**/{name}"))


# --- the table ------------------------------------------------------------------------------------------------------------------


@contextmanager
def running_stage(backend: str, folder: Path, steps: int) -> Iterator[Stage]:
    """Run a tracking server with its own database until the `with` block ends."""
    with ExitStack() as stack:
        postgres = Postgres() if backend == "postgresql" else None
        if postgres is not None:
            stack.callback(postgres.remove)
        database = postgres.uri if postgres is not None else f"sqlite:///{folder / 'database' / 'mlflow.db'}"
        (folder / "database").mkdir(exist_ok=True)
        server = TrackingServer(database, folder)
        stack.callback(server.kill)
        server.start()
        yield Stage(server, database, folder, steps, postgres)


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[bool]:
    """Mount a file system of this size at `folder`; yield whether the machine allowed the mount."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    mounted = os.getuid() == 0 and subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=False)


def show(backend: str, fault: str, result: Result) -> None:
    logged, stored = result.logged.total(), result.found.total()
    print(
        f"{backend:11}{fault:31}{result.steps:>7,}{logged:>9,}{stored:>9,}{'yes' if result.same else 'NO':>6}"
        f"{result.step_us:>9,.0f}{result.slowest_ms:>9.1f}{result.delivered_s:>10.1f}{len(result.warnings):>7}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--backend", nargs="+", choices=["sqlite", "postgresql"], default=["sqlite", "postgresql"])
    parser.add_argument("--only", nargs="+", choices=list(FAULTS), default=list(FAULTS))
    args = parser.parse_args()
    print(f"{'store':11}{'fault':31}{'steps':>7}{'logged':>9}{'found':>9}{'same':>6}", end="")
    print(f"{'step µs':>9}{'slowest':>9}{'delivered':>10}{'warned':>7}\n{'':73}{'ms':>18}{'s after':>10}{'lines':>7}")
    for backend in args.backend:
        if backend == "postgresql" and Postgres.binaries() is None:
            print("postgresql: not measured, its server is not installed")
            continue
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            mounted = stack.enter_context(small_disk(folder / "database", 64))
            stage = stack.enter_context(running_stage(backend, folder, args.steps))
            for fault in args.only:
                if fault.startswith("database") and stage.postgres is None:
                    continue
                if fault.startswith("server's disk") and (stage.postgres is not None or not mounted):
                    continue
                show(backend, fault, wait_for_delivery(stage, FAULTS[fault](stage)))


if __name__ == "__main__":
    main()
