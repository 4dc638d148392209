"""Tests versions of MLflow, Python, PyTorch and the frameworks: installs each combination and uses it from end to end.

    python benchmarks/reliability/compatibility.py                      all cells without a result in --keep; about two hours
    python benchmarks/reliability/compatibility.py --cells 'mlflow-2*'  some cells
    python benchmarks/reliability/compatibility.py --table              only the table of the results in --keep

A cell `mlflow-...`, `python-...` or `torch-...` is a virtual environment with the project's wheel. It runs a study with the hook
into SQLite and analyzes it. A cell `mlflow-...` does the same through its `mlflow server`, from its environment and from that of
the newest MLflow. A cell `store-...` writes a store with plain MLflow calls, which the newest MLflow reads and upgrades. Other
cells train an example with a framework or run the tests of a package. uv does the installation if it is available, otherwise pip.
Interpreters must be on the path as python3.12 and so on. PyTorch releases without a CPU-only build install gigabytes of CUDA
libraries.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path

from versions import checks
from versions.checks import outcome
from versions.places import CheckFailed, Place, build, install, tracking_server, versions

CHECKOUT = Path(__file__).parents[2]
PYTHON, MLFLOW, TORCH = "3.11", "3.17.2", "2.13.0"
"""Default versions, used by cells that test a different package."""
MLFLOWS = (
    "2.16.2 2.17.2 2.18.0 2.19.0 2.20.4 2.21.3 2.22.5 3.0.1 3.1.4 3.2.0 3.3.2 3.4.0 3.5.1 3.6.0 3.7.0 3.8.1 3.9.0 3.10.1 3.11.1 "
    "3.12.0 3.13.0 3.14.0 3.15.2 3.16.1 3.17.2"
).split()
"""The last release of each minor version of MLflow."""
NEW_SQLALCHEMY = (3, 9)
"""First version of MLflow that opens databases with SQLAlchemy 2.1."""
TORCHES = ("2.4.1", "2.7.1", "2.10.0", "2.15.0")
NOTED = ("python", "mlflow", "torch", "sqlalchemy", "lightning", "transformers", "optuna", "ray")


@dataclass(frozen=True)
class Cell:
    """A combination of package versions, and how to test it."""

    name: str
    python: str = PYTHON
    mlflow: str = MLFLOW
    torch: str = TORCH
    packages: tuple[str, ...] = ()
    example: str = ""
    """Name of a script in `examples`, and of its experiment; if set, the cell trains with this script instead."""
    tests: tuple[str, ...] = ()
    """Arguments of pytest; if set, the cell runs these tests."""


@dataclass
class Result:
    """The results of the checks of one cell."""

    name: str
    versions: dict[str, str] = field(default_factory=dict)
    checks: dict[str, str] = field(default_factory=dict)
    """{name of the check: empty if it passed, else the reason for its failure}."""
    notes: list[str] = field(default_factory=list)
    date: str = ""
    seconds: float = 0.0


def cells() -> list[Cell]:
    """Return all combinations of versions to test; the most informative ones come first."""
    optuna, ray = "tests/advisor/interop/importers/test_optuna.py", "tests/advisor/execution/engines/test_ray.py"
    lightning, transformers = "train_lightning.py digits-lightning", "train_transformers.py sums"
    return [
        *(Cell(f"store-{version}", mlflow=version) for version in MLFLOWS),
        *(Cell(f"mlflow-{version}", mlflow=version) for version in MLFLOWS),
        *(Cell(f"torch-{version}", torch=version) for version in TORCHES),
        *(Cell(f"python-{version}", python=version, torch=TORCHES[-1]) for version in ("3.12", "3.13")),
        *(
            Cell(f"lightning-{v}", packages=(f"lightning=={v}", "scikit-learn", "setuptools<81"), example=lightning)
            for v in ("2.2.5", "2.6.6")
        ),
        *(
            Cell(f"transformers-{v}", packages=(f"transformers[torch]=={v}",), example=transformers)
            for v in ("4.41.2", "5.23.0")
        ),
        *(Cell(f"optuna-{v}", packages=(f"optuna=={v}",), tests=(optuna,)) for v in ("4.0.0", "5.0.0")),
        *(Cell(f"ray-{v}", packages=(f"ray=={v}",), tests=(ray, "-k", "ray")) for v in ("2.30.0", "2.60.0")),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, default=CHECKOUT / "build/compatibility", help="folder of the results")
    parser.add_argument("--cells", default="*", help="names of cells, with * and ?, separated by commas")
    parser.add_argument("--table", action="store_true", help="run nothing")
    options = parser.parse_args()
    keep = options.keep.absolute()
    chosen = [c for c in cells() if any(fnmatch.fnmatch(c.name, part) for part in options.cells.split(","))]
    if not chosen:
        parser.error(f"no cell is named {options.cells}")
    if not options.table:
        run_all([cell for cell in chosen if not (keep / f"{cell.name}.json").exists()], keep)
    print(table([Result(**json.loads(file.read_text())) for c in chosen if (file := keep / f"{c.name}.json").exists()]))


def run_all(remaining: Sequence[Cell], keep: Path) -> None:
    """Run the remaining cells, and write the result of each cell."""
    if not remaining:
        return
    keep.mkdir(parents=True, exist_ok=True)
    wheel = build(CHECKOUT, keep / "wheel")
    newest = cache(lambda: prepare(Cell("newest"), wheel, keep))
    for cell in remaining:
        started = time.monotonic()
        result = run(cell, wheel, keep, newest)
        result.seconds, result.date = round(time.monotonic() - started), time.strftime("%Y-%m-%d")
        written = keep / f"{cell.name}.json"
        written.with_suffix(".part").write_text(json.dumps(asdict(result), indent=1))
        written.with_suffix(".part").replace(written)
        broken = {name: why for name, why in result.checks.items() if why}
        print(f"{cell.name}: {result.seconds} s, {broken or 'works'}", file=sys.stderr, flush=True)


def prepare(cell: Cell, wheel: Path, keep: Path) -> Place:
    """Return the environment of the cell. Raises CheckFailed if the cell's versions cannot be installed together."""
    old = tuple(map(int, cell.mlflow.split(".")[:2])) < NEW_SQLALCHEMY
    wanted = ["sqlalchemy<2.1" if old else "sqlalchemy"]
    if cell.name.startswith("store-"):
        wanted += [f"mlflow-skinny=={cell.mlflow}", "alembic", "pandas"]
    else:
        wanted += [str(wheel), f"mlflow=={cell.mlflow}", f"torch=={cell.torch}", *cell.packages]
    if cell.tests:
        wanted += ["pytest", "pytest-xdist", "pytest-rerunfailures", "hypothesis"]
    return install(keep / "env" / cell.name, cell.python, wanted, keep / "work" / cell.name)


def run(cell: Cell, wheel: Path, keep: Path, newest: Callable[[], Place]) -> Result:
    """Prepare a cell's environment, run its checks, and return the result."""
    result = Result(cell.name, versions={"python": cell.python, "mlflow": cell.mlflow, "torch": cell.torch})
    try:
        place = prepare(cell, wheel, keep)
    except CheckFailed as reason:
        result.checks["installs"] = str(reason)
        return result
    shutil.rmtree(place.folder, ignore_errors=True)
    result.versions = versions(place, NOTED)
    try:
        _check(cell, place, newest, result)
    except CheckFailed as reason:
        result.checks["the newest MLflow beside it installs"] = str(reason)
    shutil.rmtree(place.bin.parent)
    return result


def _check(cell: Cell, place: Place, newest: Callable[[], Place], result: Result) -> None:
    """Run the checks of a cell in its environment. Raises CheckFailed if the cell needs the newest MLflow and that version cannot
    be installed."""
    if cell.name.startswith("store-"):
        _use_store(place, newest(), result)
    elif cell.tests:
        result.checks["tests"] = outcome(lambda: result.notes.append(checks.run_tests(place, CHECKOUT, cell.tests)))
    elif cell.name.startswith("mlflow-"):
        beside = newest()
        _train(cell, place, result)
        _use_server(place, beside, result)
    else:
        _train(cell, place, result)


# --- checks ------------------------------------------------------------------------------------------------------------


def _use_store(place: Place, newest: Place, result: Result) -> None:
    store = place.folder / "store.db"
    result.checks["is written"] = outcome(lambda: place.call("python", checks.STORES, "write", store))

    def read() -> None:
        answers = json.loads(newest.call("python", checks.STORES, "check", store))[str(store)]
        result.notes.append(f"schema {answers.pop('schema')}")
        result.checks.update(answers)

    if broken := outcome(read):
        result.checks["read"] = broken


def _train(cell: Cell, place: Place, result: Result) -> None:
    store = place.folder / "store.db"
    here = place.at(f"sqlite:///{store}")
    if cell.example:
        script, experiment = cell.example.split()
        train = partial(checks.train_with, here, store, CHECKOUT / "examples" / script, experiment)
        result.checks["hook into SQLite"] = outcome(train)
        result.checks["analysis of SQLite"] = outcome(lambda: checks.analyze(here, experiment))
    else:
        result.checks["run into SQLite"] = outcome(lambda: checks.run_study(here, store))
        result.checks["analysis of SQLite"] = outcome(lambda: checks.analyze(here, "tiny", 2))


def _use_server(place: Place, newest: Place, result: Result) -> None:
    """Use a tracking server of the cell's MLflow version, from the cell's environment and from that of the newest MLflow."""
    store = place.folder / "served.db"
    try:
        with tracking_server(place, store) as address:
            there, beside = place.at(address), Place(newest.bin, place.folder / "newest", address)
            result.checks["hook through its server"] = outcome(lambda: checks.train(there, store))
            result.checks["analysis through its server"] = outcome(lambda: checks.analyze_both_ways(there, store))
            result.checks["newest hook, its server"] = outcome(lambda: checks.train(beside, store, "newest"))
            result.checks["newest analysis, its server"] = outcome(lambda: checks.analyze(beside, "newest"))
    except CheckFailed as reason:
        result.checks["its server"] = str(reason)
    newer = newest.folder / "newer.db"

    def read_newer() -> None:
        if not newer.exists():
            newest.call("python", checks.STORES, "write", newer)
        result.notes.append(f"a store of MLflow {MLFLOW} {checks.newer_store(place, newer)}")

    result.checks["a newer store"] = outcome(read_newer)


# --- table ----------------------------------------------------------------------------------------------------------------------


KINDS = {"store": "a store of MLflow", "mlflow": "MLflow", "torch": "PyTorch", "ray": "Ray"}


def table(results: Sequence[Result]) -> str:
    """Return a Markdown table with one row per cell: the checks that passed, and the reasons of the checks that failed."""
    rows = [("what", "installed beside it", "works", "does not work", "note"), ("---",) * 5]
    for result in results:
        kind, _, version = result.name.partition("-")
        beside = ", ".join(f"{name} {v}" for name, v in result.versions.items() if name != kind and name in NOTED)
        good = "; ".join(name for name, why in result.checks.items() if not why)
        bad = "; ".join(f"{name}: {why}" for name, why in result.checks.items() if why)
        rows.append((f"{KINDS.get(kind, kind.capitalize())} {version}", beside, good, bad, "; ".join(result.notes)))
    return "\n".join(f"| {' | '.join(text.replace('|', '¦') for text in row)} |" for row in rows)


if __name__ == "__main__":
    main()
