"""The study that the changes are made to, and what all plans say of its trials."""

from __future__ import annotations

import re

import numpy as np

from advisor.model import formula
from advisor.model.space import Value, is_learning_rate
from advisor.model.spec import Parameter, StudySpec
from advisor.model.study import Study
from advisor.planning import roles


def base(study: Study) -> StudySpec:
    """The study to change: this one, or the one that it prepares, a round on, with its fixed parameters and its trials."""
    if study.spec.baseline is not None:
        return study.spec.baseline.model_copy(update={"round": study.spec.round + 1, "parent": study.spec.study})
    spec = study.spec
    parameters = {name: _carried(name, p, name in study.inferred) for name, p in spec.parameters.items()}
    return StudySpec(
        study=spec.study,
        round=spec.round + 1,
        parent=spec.study,
        objective=spec.objective,
        parameters=parameters,
        forbidden=spec.forbidden,
        trials=spec.trials or max(int(study.ended.sum()), 1),
        sampler=spec.sampler,
        max_train_steps=spec.max_train_steps,
        final_train_steps=spec.final_train_steps,
        evaluate_every=spec.evaluate_every or _evaluation_interval(study),
        checkpoints=spec.checkpoints,
        seeds=spec.seeds,
        schedule=spec.schedule,
    )


def name_of_round(spec: StudySpec, number: int) -> str:
    """The study's name in its round of this number."""
    return re.sub(r"-round-\d+$", "", spec.study) + f"-round-{number}"


def best_setting(study: Study, spec: StudySpec) -> dict[str, Value]:
    """What the best trial has of the spec's hyperparameters, or what a probe of it fixes; empty where no trial has a result."""
    if study.probe is not None and study.spec.baseline is not None:
        found = {n: p.value for n, p in study.spec.parameters.items() if p.value is not None}
    else:
        found = dict(best[0].params) if (best := study.ranked()[:1]) else {}
    return {n: v for n, v in spec.completed(found).items() if n in spec.parameters}


def fixed(setting: dict[str, Value], spec: StudySpec, why: str) -> dict[str, Parameter]:
    """Each hyperparameter of a trial, fixed at its value; what the spec computes from others is still computed."""
    return {
        n: computed(n, setting, spec) or Parameter(role="fixed", value=value, why=why) for n, value in setting.items()
    }


def computed(name: str, setting: dict[str, Value], spec: StudySpec) -> Parameter | None:
    """The hyperparameter as the spec computes it from others of the setting; None where it does not."""
    known = spec.parameters[name]
    if known.formula is None or not formula.parse(known.formula).names <= setting.keys():
        return None
    return known.model_copy(update={"when": None})


def learning_rate(spec: StudySpec) -> str | None:
    """The name of the study's learning rate: one that is searched before one that is not."""
    named = [n for n in spec.parameters if is_learning_rate(n)]
    return next((n for n in named if spec.parameters[n].searched), named[0] if named else None)


def checked(spec: StudySpec) -> StudySpec:
    """The spec, validated: a copy with other fields is not; ValidationError where it could not be read back."""
    return StudySpec.model_validate(spec.model_dump())


def digits(value: float, count: int = 3) -> float:
    """The value to so many significant digits."""
    return float(f"{value:.{count}g}")


def _carried(name: str, parameter: Parameter, inferred: bool) -> Parameter:
    if parameter.role in ("fixed", "derived"):
        return parameter
    more = "as in the round before, where the trials showed this range" if inferred else "as in the round before"
    return parameter.model_copy(update={"why": roles.why(name, parameter.role, more)})


def _evaluation_interval(study: Study) -> int | None:
    """Steps between two evaluations in most trials; None where they are irregular or unknown."""
    gaps = [np.diff(c.steps) for t in study.trials if len(c := study.cost_curve(t)) > 2]
    if not gaps:
        return None
    every = np.concatenate(gaps)
    usual = int(np.median(every))
    return usual if usual >= 1 and np.mean(every == usual) > 0.9 else None
