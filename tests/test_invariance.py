"""What must not change a verdict: the order of the runs, the unit of the objective, which way up it is, a point logged twice.

Of order a rule may only see whether later trials follow earlier results, as those of a sampler that learns do: it weakens findings.
Recorded studies and simulated ones, some in `make test`, all in `make test-slow`. That every way of reading a store gives the same
study is shown in `tests/advisor/tracking`: test_store (SQL, client, server, files), test_sidecar and test_cache.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import nulls
import numpy as np
import pyarrow.parquet as pq
import pytest
from cases import RECORDED, Case, load_cases

from advisor import contract
from advisor.engine.judge import judge
from advisor.engine.registry import load_rules
from advisor.model.finding import Verdict
from advisor.model.study import CurveBlock, Signal, Study
from advisor.tracking.runs import Experiment, Points
from advisor.tracking.study.assemble import assemble
from advisor.tracking.study.metric_names import quantity
from tests.promise import ALL

ABSOLUTE = {
    "eval-size": "the error of a share of right answers is known because a share lies between 0 and 1",
    "curve-worse-than-chance": "what guessing scores is known by what the metric is: an entropy, a share, an area",
}
"""Rules that rightly see the unit of a metric and which way up it is, and why."""
LOSSES: tuple[Signal, ...] = ("train_loss", "train_eval_loss", "train_objective", "valid_loss")
EVERY = 1 if ALL else 48
"""Of how many studies one is asked."""


# --- studies ----------------------------------------------------------------------------------------------------------------------


def _recorded() -> dict[str, Case]:
    """A case of each recorded study, by the study's name."""
    return {"+".join(case.raw["studies"]): case for case in load_cases([RECORDED]) if case.raw["until_step"] is None}


def _of_family(number: int) -> tuple[Experiment, dict[str, Any]]:
    """A study of a family of simulated ones, as it is before it is assembled."""
    given: list[tuple[Experiment, dict[str, Any]]] = []

    def assembled(experiment: Experiment, **how: Any) -> Study:
        given.append((experiment, how))
        return assemble(experiment, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nulls, "assemble", assembled)
        nulls.FAMILIES[number].make(np.random.default_rng(number))
    return given[-1]


STUDIES: dict[str, Callable[[], tuple[Experiment, dict[str, Any]]]] = {
    **{name: case.assemble_arguments for name, case in _recorded().items()},
    **{f"simulated: {family.name}": lambda i=i: _of_family(i) for i, family in enumerate(nulls.FAMILIES)},  # type: ignore[misc]
}


# --- changes ----------------------------------------------------------------------------------------------------------------------


def _shuffled(experiment: Experiment) -> Experiment:
    """Runs, metrics and points in another order."""
    random = np.random.default_rng(0)
    order = random.permutation(len(experiment.runs))
    place = np.argsort(order)
    points = {}
    for metric in reversed(list(experiment.points)):
        p = experiment.points[metric]
        to = random.permutation(len(p.runs))
        points[metric] = Points(place[p.runs][to], p.steps[to], p.values[to], p.times[to])
    return replace(experiment, runs=tuple(experiment.runs[i] for i in order), points=points)


def _twice(experiment: Experiment) -> Experiment:
    """Every point logged twice."""
    points = {
        metric: Points(*(np.concatenate([column, column]) for column in (p.runs, p.steps, p.values, p.times)))
        for metric, p in experiment.points.items()
    }
    return replace(experiment, points=points)


def _of_the_objective(study: Study) -> set[str]:
    """Metrics in the objective's unit."""
    objective = study.spec.objective.metric
    whole = objective.removesuffix(contract.FULL_SUFFIX) + contract.FULL_SUFFIX
    return {objective, whole, *(m for m in study.metrics if quantity(m) == quantity(objective) != ())}


def _times(study: Study, factor: float) -> Study:
    """The objective and the losses in another unit."""
    scaled = _of_the_objective(study) | {study.signals[s] for s in LOSSES if s in study.signals}
    scaled |= {name + part for name in scaled for part in (".min", ".max", ".std")}
    return replace(study, metrics={m: _by(b, factor) if m in scaled else b for m, b in study.metrics.items()})


def _apart(study: Study, sign: float = 1.0) -> Study:
    """The objective and its twin on training data as metrics of their own beside the losses; with sign -1 the other way up."""
    objective = study.spec.objective
    turned = _of_the_objective(study)
    metrics = {m: _by(b, sign) if m in turned else b for m, b in study.metrics.items()}
    signals = dict(study.signals)
    for signal in LOSSES:
        if (name := signals.get(signal)) is not None:
            metrics[f"apart/{signal}"] = _by(study.metrics[name], sign if signal == "train_objective" else 1.0)
            if f"{name}.max" in study.metrics:
                metrics[f"apart/{signal}.max"] = study.metrics[f"{name}.max"]
            signals[signal] = f"apart/{signal}"
    other = "maximize" if objective.direction == "minimize" else "minimize"
    aim = objective.model_copy(update={"direction": objective.direction if sign > 0 else other})
    return replace(study, metrics=metrics, signals=signals, spec=study.spec.model_copy(update={"objective": aim}))


def _by(block: CurveBlock, factor: float) -> CurveBlock:
    return CurveBlock(block.steps, block.values * factor, block.times, block.offsets)


# --- verdicts ---------------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _rules() -> tuple[Any, ...]:
    return tuple(load_rules())


def _said(study: Study, *, trials: bool = True) -> dict[str, tuple[object, ...]]:
    """What each rule says, without figures in the metric's unit. trials: also of which trials, and how surely."""
    return {v.rule: (v.status, *sorted(_findings(v, trials=trials))) for v in judge(study, _rules())}


def _findings(verdict: Verdict, *, trials: bool) -> list[tuple[object, ...]]:
    return [
        (f.severity, str(f.subject), str(f.side), [c.kind for c in f.changes])
        + ((sorted(f.trials), round(f.confidence, 2)) if trials else ())
        for f in verdict.findings
    ]


def _unlike(
    before: Mapping[str, object], after: Mapping[str, object], but: Mapping[str, str] | None = None
) -> dict[str, tuple[object, object]]:
    return {
        rule: (before[rule], after[rule]) for rule in before if before[rule] != after[rule] and rule not in (but or {})
    }


@pytest.mark.parametrize("name", list(STUDIES)[::EVERY])
def test_no_verdict_changes(name: str) -> None:
    experiment, how = STUDIES[name]()
    study = assemble(experiment, **how)
    said, apart = _said(study), _said(_apart(study))
    unlike = {
        "another order": _unlike(
            _said(study, trials=False), _said(assemble(_shuffled(experiment), **how), trials=False)
        ),  # of trials that are equal, the first one goes first
        "every point twice": _unlike(said, _said(assemble(_twice(experiment), **how))),
        "a thousand times the unit": _unlike(said, _said(_times(study, 1e-3)), ABSOLUTE),
        "a millionth of the unit": _unlike(said, _said(_times(study, 2.0**20)), ABSOLUTE),
        "the other way up": _unlike(apart, _said(_apart(study, -1.0)), ABSOLUTE),
    }
    assert {change: rules for change, rules in unlike.items() if rules} == {}


# --- bytes ------------------------------------------------------------------------------------------------------------------------


def test_the_same_data_give_the_same_bytes(tmp_path: Path) -> None:
    """In processes that hash texts differently, as each process of Python does."""
    from advisor.interop.importers.tables import import_tables

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    for table in ("trials.parquet", "curves.parquet"):
        rows = pq.read_table(RECORDED.folder / table, filters=[("study", "=", "lr-range-low-mlp")])
        pq.write_table(rows, tmp_path / table)
    import_tables(tmp_path / "trials.parquet", tmp_path / "curves.parquet", tracking_uri=uri)
    running = []
    for seed in ("1", "2"):
        command = [
            sys.executable,
            "-m",
            "advisor",
            "analyze",
            "lr-range-low-mlp",
            "--tracking-uri",
            uri,
            "--out",
            f"out{seed}",
        ]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        running.append(subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE))
    printed = [process.communicate()[0].replace(b"out1", b"out2") for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert printed[0] == printed[1]
    one, two = (
        {p.relative_to(folder): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
        for folder in (tmp_path / "out1", tmp_path / "out2")
    )
    assert {"report.html", "findings.json", "findings.sarif"} <= set(map(str, one))
    assert one == two
