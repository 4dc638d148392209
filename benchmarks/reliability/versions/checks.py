"""Checks of a virtual environment's programs. A check that does not pass raises CheckFailed with the reason."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from versions.places import CheckFailed, Place

HERE = Path(__file__).parent
TRAINING, STORES = HERE / "training.py", HERE / "stores.py"
EXPERIMENT = "compatibility"
RUNS, STEPS = 3, 60
"""Number of runs (`RUNS`) that one call of the training logs, and number of steps (`STEPS`) of each run."""
STUDY = f"""\
study: tiny
objective: {{metric: val/loss, direction: minimize}}
parameters:
  learning_rate: {{role: nuisance, type: float, low: 0.003, high: 0.3, scale: log}}
trials: 2
max_train_steps: {STEPS}
"""


def outcome(check: Callable[[], object]) -> str:
    """Return an empty text if the check passes, else the reason for its failure."""
    try:
        check()
    except CheckFailed as reason:
        return str(reason)
    except (OSError, subprocess.SubprocessError, sqlite3.Error, ValueError) as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return ""


def train(place: Place, store: Path, experiment: str = EXPERIMENT) -> None:
    """Log runs with the hook, and check that the store has all of their points."""
    place.call("python", TRAINING, "--experiment", experiment)
    _wait_until_stored(store, experiment, RUNS)


def train_with(place: Place, store: Path, example: Path, experiment: str) -> None:
    """Log runs with one of the project's example scripts."""
    for rate in ("0.003", "0.01", "0.03"):
        place.call("python", example, "--learning-rate", rate, "--max-train-steps", str(STEPS))
    _wait_until_stored(store, experiment, RUNS)


def run_study(place: Place, store: Path) -> None:
    """Run a study of two trials with `advisor run`."""
    place.folder.mkdir(parents=True, exist_ok=True)
    study = place.folder / "tiny.yaml"
    study.write_text(STUDY)
    place.call("advisor", "run", study, "-q", "--", "python", TRAINING, "--learning-rate", "{learning_rate}")
    _wait_until_stored(store, "tiny", 2)


def _wait_until_stored(store: Path, experiment: str, runs: int) -> None:
    """Wait until the store has all steps of all runs. On a busy machine, the trainings themselves may already have stopped waiting
    for the store."""
    query = (
        "SELECT count(DISTINCT r.run_uuid), count(*) FROM experiments e JOIN runs r USING (experiment_id) JOIN metrics m "
        "USING (run_uuid) WHERE e.name = ? AND r.status = 'FINISHED' AND m.key = 'train/loss'"
    )
    until = time.monotonic() + 120
    while True:
        with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
            finished, points = connection.execute(query, (experiment,)).fetchone()
        if (finished, points) == (runs, runs * STEPS):
            return
        if time.monotonic() > until:
            raise CheckFailed(f"{finished} of {runs} runs finished, with {points} of {runs * STEPS} points")
        time.sleep(2)


def analyze(place: Place, experiment: str = EXPERIMENT, trials: int = RUNS) -> bytes:
    """Analyze the experiment, check the report and its number of trials, and return the content of findings.json."""
    out = place.folder / "report"
    for old in out.glob("*.*"):
        old.unlink()
    place.call("advisor", "analyze", experiment, "--out", out, "--quiet")
    if not (out / "report.html").read_text(encoding="utf-8").rstrip().endswith("</html>"):
        raise CheckFailed("the report is incomplete")
    findings = (out / "findings.json").read_bytes()
    counts = json.loads(findings)["trials"]
    if counts["total"] != trials or counts["complete"] != trials:
        raise CheckFailed(f"the analysis counts {counts} instead of {trials} trials")
    return findings


def analyze_both_ways(place: Place, store: Path) -> None:
    """Analyze the experiment through the server and directly from its database. The two versions of findings.json must be
    identical."""
    if analyze(place) != analyze(place.at(f"sqlite:///{store}")):
        raise CheckFailed("the server and its database give different findings")


def newer_store(place: Place, store: Path) -> str:
    """Check that the environment reads a store of a newer MLflow, or refuses it with a one-line message, without changing the
    store."""
    before = store.read_bytes()
    done = place.at(f"sqlite:///{store}").start("advisor", "analyze", "plain", "--out", place.folder / "newer", "-q")
    if store.read_bytes() != before:
        raise CheckFailed("reading changed the store")
    if done.returncode == 0:
        return "is read"
    if done.returncode != 2 or len(done.stderr.strip().splitlines()) != 1 or "pip install --upgrade" not in done.stderr:
        raise CheckFailed(f"status {done.returncode}: {done.stderr.strip()[-200:]}")
    return "is refused in a line that says to upgrade MLflow"


def run_tests(place: Place, checkout: Path, words: Sequence[str]) -> str:
    """Run the tests, and return the counts of passed and skipped tests. Raises CheckFailed if a test failed or no test passed."""
    paths = [checkout / word if word.endswith(".py") else word for word in words]
    settings = ("-p", "no:cacheprovider", "--rootdir", checkout, "-c", checkout / "pyproject.toml", "--tb", "no")
    done = place.start("python", "-m", "pytest", *settings, *paths)
    output = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    counts = re.search(r"\d+ \w+.*(?= in [\d.]+s)", output[-1]) if output else None
    if done.returncode or counts is None or "passed" not in counts[0]:
        first = next((line for line in output if line.startswith(("FAILED", "ERROR"))), "")
        raise CheckFailed("; ".join(part for part in (first, *output[-1:]) if part) or f"status {done.returncode}")
    return ", ".join(part for part in counts[0].split(", ") if not part.endswith(("warning", "warnings")))
