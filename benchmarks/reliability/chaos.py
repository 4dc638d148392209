"""Trains small runs while servers, network, disks, clocks and processes fail at random, and compares them with undisturbed runs.

    python benchmarks/reliability/chaos.py [--minutes 30] [--trainings 50] [--seed 0]

Trainings follow from their seeds (`chaos_training.py`), faults from `--seed` (`chaos_faults.py`). Killed trainings are not
repeated. At the end, `advisor sync` delivers the points that no process has delivered. *Lost* and *doubled* count points that the
spool accepted but that the store lacks or has twice. Losses and evaluations that a training printed also count, unless the training
was killed. *Other parameters* counts trainings whose parameters at any evaluation differ from those of the same training without
the hook. Each report is `right` (its best trial and its counts agree with the trainings), `one line` or `wrong`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import sqlalchemy
from chaos_faults import DisturbedSystem, chaos, compiler
from chaos_training import NO_PLACE
from faults import _points, _recorded

from advisor import contract

TRAINING = Path(__file__).with_name("chaos_training.py")
ADVISOR = [sys.executable, "-c", "from advisor.cli import main; main()"]
AT_ONCE = 5
"""Trainings that run at the same time."""
START_AND_END_S = 90.0
"""Seconds for the start and the end of a training while others run."""
SETTLE_S = 300.0
"""Maximum seconds after the last fault for processes to deliver their points."""
Printed = dict[str, dict[int, str]]
"""{"loss", "evaluation" or "parameters": {step: text}}."""


@dataclass
class Outcome:
    """The output of a training, and how it ended."""

    seed: int
    printed: Printed = field(default_factory=lambda: defaultdict(dict))
    killed: bool = False
    attempts: int = 0
    status: int | None = None
    stderr: str = ""


Twins = Future[dict[int, Outcome]]
"""Future with the outcomes of the same trainings without hook and faults."""


@dataclass
class Damage:
    """Counts of damage, and one line about each damage."""

    lost: int = 0
    doubled: int = 0
    other_parameters: int = 0
    points: int = 0
    reports: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether there is no damage."""
        return not (self.lost or self.doubled or self.other_parameters or self.reports["wrong"] or self.problems)


def follow(lines: Iterator[str], outcomes: dict[int, Outcome]) -> None:
    """Read what a training prints."""
    seed = -1
    for line in lines:
        if not line.endswith("\n"):  # the training was killed
            return
        what, step, text = line.split()
        if what == "training":
            seed = int(step)
            outcomes.setdefault(seed, Outcome(seed)).printed.clear()
        else:
            outcomes[seed].printed[what][int(step)] = text


def undisturbed_outcomes(seeds: Sequence[int]) -> dict[int, Outcome]:
    """Return the outcomes of trainings without hook and faults."""
    done = subprocess.run(
        [sys.executable, TRAINING, *map(str, seeds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    outcomes: dict[int, Outcome] = {}
    follow(iter(done.stdout.splitlines(keepends=True)), outcomes)
    return outcomes


# --- trainings and reports ------------------------------------------------------------------------------------------------------


def environment(stage: DisturbedSystem, group: str) -> dict[str, str]:
    """Return the variables of a process of this group."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("MLFLOW_")}
    own = {"ADVISOR_CACHE": str(stage.folder / "reports" / "cache"), "MLFLOW_DISABLE_TELEMETRY": "true"}
    return kept | own | stage.controls[group].environment


def train(stage: DisturbedSystem, outcome: Outcome, seconds: float) -> None:
    """Run a training, and start it again if the disk refuses its spool."""
    seed = outcome.seed
    while outcome.status in (None, NO_PLACE):
        outcome.attempts += 1
        disk, tee = stage.folder / "disk" / str(seed), stage.folder / "trainings" / f"{seed}.tee"
        words = [sys.executable, str(TRAINING), str(seed), "--uri", stage.proxy.uri, "--disk", str(disk)]
        words += ["--tee", str(tee), "--seconds", str(seconds)]
        with open(stage.folder / "trainings" / f"{seed}.log", "w+") as stderr:
            process = subprocess.Popen(
                words,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=environment(stage, "trainings"),
                cwd=stage.folder,
            )
            stage.trainers.append(process)
            assert process.stdout is not None
            follow(iter(process.stdout), {seed: outcome})
            outcome.status = process.wait()
            stage.trainers.remove(process)
            outcome.killed = process.pid in stage.killed
            stderr.seek(0)
            outcome.stderr = stderr.read()
        print(f"training {seed}: exit status {outcome.status}", file=sys.stderr, flush=True)
        if outcome.status == NO_PLACE:
            time.sleep(1.0)


@contextmanager
def reporting(stage: DisturbedSystem, twins: Twins, every_s: float, damage: Damage) -> Iterator[None]:
    """Report on the trainings repeatedly, from a thread during the block."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(every_s):
            damage.reports[report(stage, twins, damage)] += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def report(stage: DisturbedSystem, twins: Twins, damage: Damage) -> str:
    """Report on the trainings; return "right", "one line", "killed" or "wrong"."""
    out = stage.folder / "reports" / "report"
    words = [*ADVISOR, "analyze", "chaos", "--tracking-uri", stage.proxy.uri, "--out", str(out), "--quiet"]
    process = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(stage, "reports"),
        cwd=stage.folder,
    )
    stage.report = process
    _, err = process.communicate()
    stage.report = None
    if process.pid in stage.killed:
        return "killed"
    if process.returncode == 2 and err.startswith("advisor: ") and err.count("\n") == 1 and "(a bug" not in err:
        return "one line"
    why = err
    if process.returncode in (0, 1):
        why = _error_of(json.loads((out / "findings.json").read_text()), twins.result())
    if why:
        damage.problems.append(f"report: {why.strip()[-600:]}")
    return "wrong" if why else "right"


def _error_of(report: dict[str, Any], truth: dict[int, Outcome]) -> str:
    """Return the error in a report on trainings that may still run; "" if there is none."""
    counts, best = report["trials"], report["best"]
    if counts["total"] > len(truth):
        return f"{counts['total']} trials of {len(truth)} trainings"
    if best is None:
        return ""
    values = truth[int(best["name"].split()[1])].printed["evaluation"]
    found = float(values.get(best["step"], "nan"))
    return "" if math.isclose(found, best["value"], rel_tol=1e-9) else f"best is {best}, but the training has {found}"


# --- counts ---------------------------------------------------------------------------------------------------------------------


def deliver_rest(stage: DisturbedSystem) -> int:
    """Deliver the remaining spools; return the number that `advisor sync` delivered."""
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline and any(map(_is_at_work, _spools(stage))):
        time.sleep(0.5)
    left = _spools(stage)
    for folder in left:
        words = [*ADVISOR, "sync", "--quiet", str(folder), "--tracking-uri", stage.proxy.uri]
        done = subprocess.run(
            words, env=environment(stage, "trainings"), stderr=subprocess.PIPE, text=True, check=False
        )
        if done.returncode:
            print(done.stderr, file=sys.stderr)
    return len(left)


def _spools(stage: DisturbedSystem) -> list[Path]:
    return [path.parent for path in (stage.folder / "disk").glob("*/spool/*/run.json")]


def _is_at_work(folder: Path) -> bool:
    from advisor_logging.shipper import lock_spool

    try:
        held = lock_spool(folder)
    except OSError:
        return False
    if held is not None:
        held.release()
    return held is None


def count_damage(stage: DisturbedSystem, outcome: Outcome, truth: Outcome, damage: Damage) -> None:
    """Compare a training with the store and with its undisturbed twin."""
    name = f"training {outcome.seed}"
    parameters = outcome.printed["parameters"].items()
    if not parameters <= truth.printed["parameters"].items() or (-1 not in dict(parameters) and not outcome.killed):
        damage.other_parameters += 1
        damage.problems.append(f"{name}: other parameters, status {outcome.status}: {outcome.stderr[-500:]}")
    tee = stage.folder / "trainings" / f"{outcome.seed}.tee"
    frames = list(_recorded(tee)) if tee.exists() else []
    runs = in_database(stage.database, name)
    if len(runs) != 1 and (frames or not outcome.killed):
        damage.problems.append(f"{name}: {len(runs)} runs, {len(frames)} frames")
    if not runs:
        return
    run_id, tags, found = runs[0]
    logged = Counter({(*key, _stored(value)): n for (*key, value), n in _points(frames).items()})
    missing, extra = logged - found, found - logged
    damage.points += logged.total()
    damage.lost += missing.total() + int(tags.get(contract.TAG_LOST_POINTS, 0))
    damage.doubled += extra.total()
    for points, what in ((missing, "lacks"), (extra, "has more")):
        if points:
            damage.problems.append(f"{name}: the store {what} {points.total()} points, such as {next(iter(points))}")
    if contract.TAG_LOST_POINTS in tags:
        damage.problems.append(f"{name}: {tags[contract.TAG_LOST_POINTS]} points lost, as its tag says")
    if not outcome.killed:
        _count_printed(stage, outcome, run_id, damage)


def _stored(value: str) -> str:
    """Return a value as MLflow's database stores it, with the largest float in place of infinity."""
    return repr(math.copysign(sys.float_info.max, float(value))) if math.isinf(float(value)) else value


def _count_printed(stage: DisturbedSystem, outcome: Outcome, run_id: str, damage: Damage) -> None:
    """Compare what a training printed with the curves at full resolution.

    A training with a `GradScaler` is compared only up to its first infinite loss, because the scaler skips that step, which the
    hook does not count.
    """
    stored: dict[str, dict[int, float]] = defaultdict(dict)
    twice = []
    for path in (stage.folder / "artifacts").glob(f"*/{run_id}/**/{contract.SIDECAR_PATH.rpartition('/')[2]}"):
        table = pq.read_table(path).to_pydict()
        for metric, step, value in zip(table["metric"], table["step"], table["value"], strict=True):
            twice += [step] if step in stored[metric] else []
            stored[metric][step] = value
    skipped = (s for s, text in outcome.printed["loss"].items() if not math.isfinite(float(text)))
    end = min(skipped, default=math.inf) if contract.LOSS_SCALE in stored else math.inf
    damage.doubled += sum(step < end for step in twice)
    lost = []
    for printed, metric in (("loss", contract.TRAIN_LOSS), ("evaluation", "val/error")):
        for step, text in outcome.printed[printed].items():
            found = stored[metric].get(step, math.nan)
            if step < end and not (
                math.isclose(float(text), found, rel_tol=1e-5) or (text == "nan" and step in stored[metric])
            ):
                lost.append(f"{metric} at {step} is {found}, not {text}")
    damage.lost += len(lost)
    if lost:
        damage.problems.append(f"training {outcome.seed}: {len(lost)} differ at full resolution, such as {lost[0]}")


def in_database(uri: str, name: str) -> list[tuple[str, dict[str, str], Counter[Any]]]:
    """Return id, tags and points of the runs of this name."""
    engine = sqlalchemy.create_engine(uri)
    result = []
    with engine.connect() as connection:

        def select(query: str, **values: Any) -> list[Any]:
            return list(connection.execute(sqlalchemy.text(query), values))

        for (run,) in select("SELECT run_uuid FROM runs WHERE name = :name AND lifecycle_stage = 'active'", name=name):
            tags = dict(tuple(row) for row in select("SELECT key, value FROM tags WHERE run_uuid = :id", id=run))
            rows = select("SELECT key, step, timestamp, value, is_nan FROM metrics WHERE run_uuid = :id", id=run)
            points = Counter((k, s, t, "nan" if is_nan else repr(float(v))) for k, s, t, v, is_nan in rows)
            result.append((run, tags, points))
    engine.dispose()
    return result


# --- all of it ------------------------------------------------------------------------------------------------------------------


def run_once(
    folder: Path, minutes: float, trainings: int, seed: int
) -> tuple[Damage, dict[int, Outcome], Counter[str]]:
    """Train under random faults; return the damage, the trainings and the number of faults of each kind."""
    seeds = [1000 * seed + k for k in range(trainings)]
    twins: Twins = Future()
    threading.Thread(target=lambda: twins.set_result(undisturbed_outcomes(seeds))).start()
    outcomes = {one: Outcome(one) for one in seeds}
    damage, waiting, stage = Damage(), list(seeds), DisturbedSystem(folder, seed)
    seconds = 60 * minutes * min(AT_ONCE, trainings) / trainings - START_AND_END_S
    try:
        with chaos(stage), reporting(stage, twins, 12.0, damage):

            def work() -> None:
                while waiting:
                    with contextlib.suppress(IndexError):
                        train(stage, outcomes[waiting.pop()], max(seconds, 10.0))

            workers = [threading.Thread(target=work) for _ in range(AT_ONCE)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        stage.counts["spools left for advisor sync"] = deliver_rest(stage)
        for one in seeds:
            count_damage(stage, outcomes[one], twins.result()[one], damage)
        damage.reports[f"{report(stage, twins, damage)} at the end"] += 1
    finally:
        stage.close()
    return damage, outcomes, stage.counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--trainings", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="keep all files here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="advisor-chaos-") as temporary:
        began = time.monotonic()
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        damage, outcomes, faults = run_once(folder.resolve(), args.minutes, args.trainings, args.seed)
    if compiler() is None:
        print("no C compiler: disks and clocks did not fail")
    rows = {
        "minutes": round((time.monotonic() - began) / 60, 1),
        "trainings": len(outcomes),
        "killed": sum(one.killed for one in outcomes.values()),
        **dict(sorted(faults.items())),
        "points": damage.points,
        "lost": damage.lost,
        "doubled": damage.doubled,
        "other parameters": damage.other_parameters,
        **{f"reports {kind}": number for kind, number in sorted(damage.reports.items())},
    }
    for name, number in rows.items():
        print(f"{name:32}{number:>10,}")
    for problem in damage.problems:
        print(f"    {problem}")
    sys.exit(not damage.clean)


if __name__ == "__main__":
    main()
