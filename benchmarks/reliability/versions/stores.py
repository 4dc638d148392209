"""Stores for `../compatibility.py`: one version of MLflow writes a store with plain calls, and another version reads and upgrades
it.

python benchmarks/reliability/versions/stores.py write STORE       with the MLflow of this environment
python benchmarks/reliability/versions/stores.py check STORE...    prints the differences as JSON
"""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

EXPERIMENT = "plain"
STEPS = 20
ODD = (math.nan, math.inf, -math.inf)
"""Values that the metric `odd` has at the steps 0, 1 and 2."""


def main() -> None:
    doing, *stores = sys.argv[1:]
    if doing == "write":
        write(Path(stores[0]))
    else:
        print(json.dumps({store: check(Path(store)) for store in stores}))


def write(store: Path) -> None:
    """Write three finished runs, a failed run and a deleted run, each with two metrics."""
    from mlflow.entities import Metric, Param, RunTag
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{store}")
    experiment = client.create_experiment(EXPERIMENT, tags={"team": "vision"})
    for trial in range(5):
        run = client.create_run(experiment, start_time=1000 * trial + 1, run_name=f"trial-{trial}").info.run_id
        rate = 10.0 ** -(trial + 1)
        loss = [Metric("val/loss", rate + 1 / (1 + step), 10 * step, step) for step in range(STEPS)]
        odd = [Metric("odd", value, 1, step) for step, value in enumerate(ODD)]
        client.log_batch(run, [*loss, *odd], [Param("lr", str(rate))], [RunTag("note", f"tag {trial}")])
        client.set_terminated(run, "FAILED" if trial == 3 else "FINISHED", 1000 * trial + 500)
        if trial == 4:
            client.delete_run(run)


def check(store: Path) -> dict[str, str]:
    """Return the schema version, and how the store differs from the written data before and after its upgrade; empty if it does
    not."""
    answers = {}
    with closing(sqlite3.connect(store)) as connection:
        answers["schema"] = str(connection.execute("SELECT version_num FROM alembic_version").fetchone()[0])
    answers["read"] = difference(store)
    upgraded = store.with_name(f"upgraded-{store.name}")
    shutil.copy(store, upgraded)
    answers["upgraded"] = upgrade(upgraded) or difference(upgraded)
    return answers


def difference(store: Path) -> str:
    """Return the names of those parts of the store that differ from the written data; empty if no part differs."""
    from advisor import analyze
    from advisor.model.errors import AdvisorError
    from advisor.tracking.stores.reading import read_experiment

    uri = f"sqlite:///{store}"
    try:
        before = store.read_bytes()
        experiment = read_experiment(EXPERIMENT, tracking_uri=uri)
        filtered = read_experiment(EXPERIMENT, tracking_uri=uri, filter="params.lr = '0.01'")
        report = analyze(EXPERIMENT, tracking_uri=uri, objective="val/loss", direction="minimize")
    except AdvisorError as error:
        return str(error)
    odd, loss = experiment.points["odd"], experiment.points["val/loss"]
    equal = {
        "runs": [run.status for run in experiment.runs] == ["FINISHED"] * 3 + ["FAILED"],
        "names": [run.name for run in experiment.runs] == [f"trial-{i}" for i in range(4)],
        "params": [float(run.params["lr"]) for run in experiment.runs] == [10.0**-i for i in range(1, 5)],
        "tags": [run.tags["note"] for run in experiment.runs] == [f"tag {i}" for i in range(4)],
        "tags of the experiment": experiment.tags.get("team") == "vision",
        "points": len(loss.values) == 4 * STEPS and sorted(loss.steps.tolist()) == sorted([*range(STEPS)] * 4),
        "odd values": [repr(v) for v in odd.values[:3].tolist()] == ["nan", "inf", "-inf"],
        "filter": [run.name for run in filtered.runs] == ["trial-1"],
        "report": report.to_html().rstrip().endswith("</html>"),
        "store left as it was": store.read_bytes() == before,
    }
    return ", ".join(name for name, good in equal.items() if not good)


def upgrade(store: Path) -> str:
    """Upgrade the store to the schema of the installed MLflow, as `mlflow db upgrade` does; return the reason if this fails, else
    an empty text."""
    import sqlalchemy
    from mlflow.store.db.utils import _upgrade_db

    engine = sqlalchemy.create_engine(f"sqlite:///{store}")
    try:
        _upgrade_db(engine)  # type: ignore[no-untyped-call]
    except Exception as error:
        return f"MLflow cannot upgrade it: {' '.join(str(error).split())[:200]}"
    finally:
        engine.dispose()
    return ""


if __name__ == "__main__":
    main()
