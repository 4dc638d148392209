"""Changes that must not affect a verdict: the order of the runs, the unit and direction of the objective, points logged twice.

Rules may use the order only to see whether later trials depend on earlier results, as with an adaptive sampler, which weakens
findings. `make test` checks some recorded and simulated studies, `make test-slow` all. `tests/advisor/tracking` checks that every
way of reading a store gives the same study.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import null_studies
import nulls
import numpy as np
import pyarrow.parquet as pq
import pytest
from cases import RECORDED, Case, load_cases
from commands import ADVISOR

from advisor import contract
from advisor.contract.metric_direction import quantity_words
from advisor.engine.judge import judge
from advisor.engine.registry import load_rules
from advisor.model.finding import Verdict
from advisor.model.study import CurveBlock, Signal, Study
from advisor.tracking.runs import Experiment, Points
from advisor.tracking.study.assemble import assemble
from tests.promise import ALL

ABSOLUTE = {
    "eval-size": "the standard error of a share is known because shares lie between 0 and 1",
    "curve-worse-than-chance": "the chance level follows from the kind of metric: entropy, share or area",
}
"""Rules that may depend on the unit and direction of a metric, and why."""
LOSSES: tuple[Signal, ...] = ("train_loss", "train_eval_loss", "train_objective", "valid_loss")
EVERY = 1 if ALL else 48
"""Test one of this many studies."""


# --- studies ----------------------------------------------------------------------------------------------------------------------


def _recorded() -> dict[str, Case]:
    """Return one case of each recorded study by the study's name."""
    return {"+".join(case.raw["studies"]): case for case in load_cases([RECORDED]) if case.raw["until_step"] is None}


def _of_family(number: int) -> tuple[Experiment, dict[str, Any]]:
    """Return the arguments of `assemble` for a study of a simulated family."""
    calls: list[tuple[Experiment, dict[str, Any]]] = []

    def assembled(experiment: Experiment, **how: Any) -> Study:
        calls.append((experiment, how))
        return assemble(experiment, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(null_studies, "assemble", assembled)
        nulls.FAMILIES[number].make(np.random.default_rng(number))
    return calls[-1]


STUDIES: dict[str, Callable[[], tuple[Experiment, dict[str, Any]]]] = {
    **{name: case.assemble_arguments for name, case in _recorded().items()},
    **{f"simulated: {family.name}": lambda i=i: _of_family(i) for i, family in enumerate(nulls.FAMILIES)},  # type: ignore[misc]
}


# --- changes ----------------------------------------------------------------------------------------------------------------------


def _shuffled(experiment: Experiment) -> Experiment:
    """Shuffle runs, metrics and points."""
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
    """Log every point twice."""
    points = {
        metric: Points(*(np.concatenate([column, column]) for column in (p.runs, p.steps, p.values, p.times)))
        for metric, p in experiment.points.items()
    }
    return replace(experiment, points=points)


def _of_the_objective(study: Study) -> set[str]:
    """Return the metrics in the objective's unit."""
    objective = study.spec.objective.metric
    whole = objective.removesuffix(contract.FULL_SET_SUFFIX) + contract.FULL_SET_SUFFIX
    return {objective, whole, *(m for m in study.metrics if quantity_words(m) == quantity_words(objective) != ())}


def _times(study: Study, factor: float) -> Study:
    """Multiply the objective and the losses by a factor."""
    scaled = _of_the_objective(study) | {study.signals[s] for s in LOSSES if s in study.signals}
    scaled |= {name + part for name in scaled for part in (".min", ".max", ".std")}
    return replace(study, metrics={m: _by(b, factor) if m in scaled else b for m, b in study.metrics.items()})


def _apart(study: Study, sign: float = 1.0) -> Study:
    """Separate the objective and its training twin from the losses; with sign -1 reverse their direction."""
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


def _verdicts(study: Study, *, trials: bool = True, absolute: bool = True) -> dict[str, tuple[object, ...]]:
    """Return each rule's verdict without figures in the metric's unit.

    trials: include trials and confidence. absolute: apply the rules in `ABSOLUTE` too; their findings can make the verdicts of
    other rules "not-assessed".

    A verdict that results tie counts as quiet, because chance is known for an accuracy and not for a thousand times an accuracy.
    """
    rules = [rule for rule in _rules() if absolute or rule.rule_id() not in ABSOLUTE]
    return {v.rule: (_status(v), *sorted(_findings(v, trials=trials))) for v in judge(study, rules)}


def _status(verdict: Verdict) -> str:
    return "quiet" if (verdict.reason or "").startswith("the results tie") else verdict.status


def _findings(verdict: Verdict, *, trials: bool) -> list[tuple[object, ...]]:
    return [
        (f.severity, str(f.subject), str(f.side), [c.kind for c in f.changes])
        + ((sorted(f.trials), round(f.confidence, 2)) if trials else ())
        for f in verdict.findings
    ]


def _differences(before: Mapping[str, object], after: Mapping[str, object]) -> dict[str, tuple[object, object]]:
    return {rule: (before[rule], after[rule]) for rule in before if before[rule] != after[rule]}


@pytest.mark.parametrize("name", list(STUDIES)[::EVERY])
def test_no_verdict_changes(name: str) -> None:
    experiment, how = STUDIES[name]()
    study = assemble(experiment, **how)
    relative, apart = _verdicts(study, absolute=False), _verdicts(_apart(study), absolute=False)
    changed = {
        "another order": _differences(
            _verdicts(study, trials=False), _verdicts(assemble(_shuffled(experiment), **how), trials=False)
        ),  # of trials that are equal, the first one goes first
        "every point twice": _differences(_verdicts(study), _verdicts(assemble(_twice(experiment), **how))),
        "a thousand times the unit": _differences(relative, _verdicts(_times(study, 1e-3), absolute=False)),
        "a millionth of the unit": _differences(relative, _verdicts(_times(study, 2.0**20), absolute=False)),
        "the other way up": _differences(apart, _verdicts(_apart(study, -1.0), absolute=False)),
    }
    assert {change: rules for change, rules in changed.items() if rules} == {}


# --- bytes ------------------------------------------------------------------------------------------------------------------------


def test_the_same_data_give_the_same_bytes(tmp_path: Path, database: str) -> None:
    """Two processes with different hash seeds."""
    from imports import import_tables

    for table in ("trials.parquet", "curves.parquet"):
        rows = pq.read_table(RECORDED.folder / table, filters=[("study", "=", "lr-range-low-mlp")])
        pq.write_table(rows, tmp_path / table)
    import_tables(tmp_path / "trials.parquet", tmp_path / "curves.parquet", tracking_uri=database)
    running = []
    for seed in ("1", "2"):
        command = [*ADVISOR, "analyze", "lr-range-low-mlp", "--tracking-uri", database]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        (tmp_path / seed).mkdir()
        running.append(subprocess.Popen(command, cwd=tmp_path / seed, env=environment, stdout=subprocess.PIPE))
    printed = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert printed[0] == printed[1]
    one, two = (
        {p.relative_to(folder): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
        for folder in (tmp_path / "1" / "advisor-report", tmp_path / "2" / "advisor-report")
    )
    assert {"report.html", "findings.json", "findings.sarif"} <= set(map(str, one))
    assert one == two
