"""What is done with the programs of an environment: a check raises Failed, which says why, where something does not hold."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from versions.places import Failed, Place

HERE = Path(__file__).parent
TRAINING, STORES = HERE / "training.py", HERE / "stores.py"
EXPERIMENT = "compatibility"
RUNS, STEPS = 3, 60
"""Runs that one call of the training logs, and their steps."""
STUDY = f"""\
study: tiny
objective: {{metric: val/loss, direction: minimize}}
parameters:
  learning_rate: {{role: nuisance, type: float, low: 0.003, high: 0.3, scale: log}}
trials: 2
max_train_steps: {STEPS}
"""


def outcome(check: Callable[[], object]) -> str:
    """Empty where the check holds, else why it does not."""
    try:
        check()
    except Failed as reason:
        return str(reason)
    except (OSError, subprocess.SubprocessError, sqlite3.Error, ValueError) as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return ""


def train(place: Place, store: Path, experiment: str = EXPERIMENT) -> None:
    """Log some runs with the hook; all their points arrive in the store's file."""
    place.call("python", TRAINING, "--experiment", experiment)
    _arrived(store, experiment, RUNS)


def train_with(place: Place, store: Path, example: Path, experiment: str) -> None:
    """Log some runs with one of the project's example scripts."""
    for rate in ("0.003", "0.01", "0.03"):
        place.call("python", example, "--learning-rate", rate, "--max-train-steps", str(STEPS))
    _arrived(store, experiment, RUNS)


def run_study(place: Place, store: Path) -> None:
    """Train a study of two trials with `advisor run`."""
    place.folder.mkdir(parents=True, exist_ok=True)
    study = place.folder / "tiny.yaml"
    study.write_text(STUDY)
    place.call("advisor", "run", study, "-q", "--", "python", TRAINING, "--learning-rate", "{learning_rate}")
    _arrived(store, "tiny", 2)


def _arrived(store: Path, experiment: str, runs: int) -> None:
    """Wait until the store has all runs to their last step; on a busy machine that takes longer than a training waits for it."""
    asked = (
        "SELECT count(DISTINCT r.run_uuid), count(*) FROM experiments e JOIN runs r USING (experiment_id) JOIN metrics m "
        "USING (run_uuid) WHERE e.name = ? AND r.status = 'FINISHED' AND m.key = 'train/loss'"
    )
    until = time.monotonic() + 120
    while True:
        with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
            found = connection.execute(asked, (experiment,)).fetchone()
        if found == (runs, runs * STEPS):
            return
        if time.monotonic() > until:
            raise Failed(f"of {runs} runs with {STEPS} points each {found[0]} ended, and {found[1]} points came")
        time.sleep(2)


def analyze(place: Place, experiment: str = EXPERIMENT, trials: int = RUNS) -> bytes:
    """Analyse from start to the report; gives findings.json, which counts all trials."""
    out = place.folder / "report"
    for old in out.glob("*.*"):
        old.unlink()
    place.call("advisor", "analyze", experiment, "--out", out, "--quiet")
    if not (out / "report.html").read_text(encoding="utf-8").rstrip().endswith("</html>"):
        raise Failed("the report is not whole")
    found = (out / "findings.json").read_bytes()
    counts = json.loads(found)["trials"]
    if counts["total"] != trials or counts["complete"] != trials:
        raise Failed(f"of {trials} trials the analysis has {counts}")
    return found


def analyze_both_ways(place: Place, store: Path) -> None:
    """Analyse through the server and from its database: byte for byte the same is found."""
    if analyze(place) != analyze(place.at(f"sqlite:///{store}")):
        raise Failed("the server and its database give different findings")


def newer_store(place: Place, store: Path) -> str:
    """How the environment takes a store of a newer MLflow: reads it, or refuses it in a line; it stays as it is."""
    before = store.read_bytes()
    done = place.at(f"sqlite:///{store}").start("advisor", "analyze", "plain", "--out", place.folder / "newer", "-q")
    if store.read_bytes() != before:
        raise Failed("reading changed the store")
    if done.returncode == 0:
        return "is read"
    if done.returncode != 2 or len(done.stderr.strip().splitlines()) != 1 or "pip install --upgrade" not in done.stderr:
        raise Failed(f"status {done.returncode}: {done.stderr.strip()[-200:]}")
    return "is refused in a line that says to upgrade MLflow"


def run_tests(place: Place, checkout: Path, words: Sequence[str]) -> str:
    """How many of the project's tests passed and were skipped; Failed with the first that failed, or where none passed."""
    paths = [checkout / word if word.endswith(".py") else word for word in words]
    settings = ("-p", "no:cacheprovider", "--rootdir", checkout, "-c", checkout / "pyproject.toml", "--tb", "no")
    done = place.start("python", "-m", "pytest", *settings, *paths)
    said = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    counts = re.search(r"\d+ \w+.*(?= in [\d.]+s)", said[-1]) if said else None
    if done.returncode or counts is None or "passed" not in counts[0]:
        first = next((line for line in said if line.startswith(("FAILED", "ERROR"))), "")
        raise Failed("; ".join(part for part in (first, *said[-1:]) if part) or f"status {done.returncode}")
    return ", ".join(part for part in counts[0].split(", ") if not part.endswith(("warning", "warnings")))
