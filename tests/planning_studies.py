"""A study with a known optimum, verdicts that ask for changes, and a check that a next study can be run."""

from __future__ import annotations

from typing import Any

import numpy as np
from studies import make_study

from advisor.engine.registry import load_rules
from advisor.model.change import Change, RunPlan, SetField, SetRange
from advisor.model.finding import Finding, Verdict
from advisor.model.spec import Objective, Parameter, StudySpec
from advisor.model.spec_yaml import format_study_file, parse_study_file
from advisor.model.study import Study
from advisor.planning import plan
from advisor.planning.sampling.adaptive import suggest_trial
from advisor.planning.sampling.halton import draw_trials

AIM = Objective(metric="val/loss", direction="minimize")
SPACE = {
    "lr": Parameter(low=1e-4, high=1e-1, scale="log"),
    "weight_decay": Parameter(low=1e-6, high=1e-2, scale="log"),
    "width": Parameter(role="fixed", value=64),
}
RULES = load_rules(settings={})
QUIET = tuple(Verdict(rule=r, status="quiet") for r in ("space-boundary", "space-undersampled"))


STEPS = SetField(field="max_train_steps", value=900, why="still improving")


def few(count: int = 6) -> Study:
    """A study of two hyperparameters and few trials."""
    params = [{"lr": 10.0 ** -(i + 1), "dropout": 0.1 * i} for i in range(count)]
    return make_study(params, {"val/loss": [[1.0, 0.5, 0.4 + 0.01 * i] for i in range(count)]})


def wider(low: float = 1e-6, high: float = 1.0, parameter: str = "lr") -> SetRange:
    return SetRange(parameter=parameter, low=low, high=high, scale="log", why="because")


def bowl(count: int = 60, centre: float = 0.5, seed: int = 0, spread: float = 1.0, **spec: Any) -> Study:
    """A study whose optimum lies at `centre` of both ranges, with flat ends of curves."""
    rng = np.random.default_rng(seed)
    params, curves = [], []
    for _ in range(count):
        u = rng.random(2)
        values = {n: SPACE[n].value_at_position(float(p)) for n, p in zip(("lr", "weight_decay"), u, strict=True)}
        params.append({**values, "width": 64})
        end = 0.3 + spread * ((u[0] - centre) ** 2 + 0.3 * (u[1] - centre) ** 2) + 0.002 * rng.normal()
        curves.append(end + 2 * np.exp(-np.arange(20) / 4) + 0.0005 * rng.normal(size=20))
    data = make_study(params, {"val/loss": curves})
    made = StudySpec(study="s", objective=AIM, parameters=SPACE, trials=count, **{"max_train_steps": 2000, **spec})
    return Study(spec=made, trials=data.trials, metrics=data.metrics, signals=data.signals)


def reparametrised(**spec: Any) -> Study:
    """A study that logged a learning rate and a momentum and now searches lr / (1 - momentum)."""
    rng = np.random.default_rng(0)
    params = [{"lr": 10.0 ** rng.uniform(-4, -1), "momentum": rng.uniform(0.5, 0.95)} for _ in range(30)]
    ends = [0.3 + (np.log10(p["lr"] / (1 - p["momentum"])) + 1) ** 2 for p in params]
    data = make_study(params, {"val/loss": [end + 2 * np.exp(-np.arange(20) / 4) for end in ends]})
    space = {
        "lr": Parameter(role="derived", formula="effective_lr * (1 - momentum)"),
        "momentum": Parameter(low=0.5, high=0.95),
        "effective_lr": Parameter(low=1e-4, high=2.0, scale="log", equals="lr / (1 - momentum)"),
        "batch_size": Parameter(role="fixed", value=64),
    }
    made = StudySpec(study="s", objective=AIM, parameters=space, trials=30, max_train_steps=2000, **spec)
    return Study(spec=made, trials=data.trials, metrics=data.metrics, signals=data.signals)


def found(rule: str, goal: Any, *changes: Change, severity: Any = "warning", **fields: Any) -> Verdict:
    """The verdict of a rule with one finding that asks for these changes."""
    words = {"message": f"{rule} fired", "action": "Do it.", "playbook": "P", "confidence": 0.9}
    finding = Finding(rule=rule, goal=goal, severity=severity, changes=changes, **{**words, **fields})
    return Verdict(rule=rule, status="fired", findings=(finding,))


def asks(design: Any, goal: Any = "exploitation", **fields: Any) -> Verdict:
    """The verdict of a rule that asks for a design."""
    return found("r", goal, RunPlan(plan=design, why="because", **fields))


def only_study(study: Study, *verdicts: Verdict) -> StudySpec:
    """Return the only next study, after checking that it can be read back and that its trials can be drawn."""
    (spec,) = plan(study, verdicts, RULES).specs
    assert_ready_to_run(spec)
    return spec


def assert_ready_to_run(spec: StudySpec) -> None:
    assert parse_study_file(format_study_file(spec)) == spec
    count = spec.trials or 1
    assert suggest_trial(spec, ()) if spec.sampler.kind == "adaptive" else len(list(draw_trials(spec, count))) == count
