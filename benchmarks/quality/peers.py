"""Other tools that read training curves, compared with the rules: runmedic, trainspotter, losslint.

They are not dependencies: `pip install runmedic trainspotter losslint` for `diagnosis.py --peers`. Each of these tools judges a
single run. A tool reads every trial of a study, after the curves are renamed to names that it knows; `WAYS` combines its alarms
into one answer about the study.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

import numpy as np

from advisor.model.study import Curve, Signal, Study, Trial

NAMES = ("runmedic", "trainspotter", "losslint")

Answers: TypeAlias = dict[str, dict[str, bool]]
"""{peer: {way of combining its alarms: whether the combination is an alarm}}."""


@dataclass(frozen=True)
class Alarm:
    """One alarm that a peer raises about one trial."""

    check: str
    """Name of the peer's check that raised the alarm."""
    at: float
    """Position of the alarm in the training, from 0 to 1; NaN if the peer does not report it."""


@dataclass(frozen=True)
class PeerQuestion:
    """The checks of the peers that answer the same question as one of our rules."""

    checks: Mapping[str, tuple[str, ...]]
    """{peer: names of its checks}."""
    phase: tuple[float, float] = (0.0, 1.0)
    """The part of the training that our rule judges, from 0 to 1. Alarms are counted both within this part and within the whole
    training."""
    absent: bool = False
    """Whether the check asks the opposite question, so that no alarm means yes."""


_BLOWUP = {
    "runmedic": ("non_finite", "divergence", "loss_spikes", "grad_spikes"),
    "trainspotter": ("divergence", "spikes", "grad_norm"),
    "losslint": ("nan_inf", "divergence", "loss_spike"),
}
_RISE = {"runmedic": ("divergence",), "trainspotter": ("divergence",), "losslint": ("divergence",)}
_FLAT = {"runmedic": ("constant_lr_plateau",), "trainspotter": ("plateau",), "losslint": ("stagnation",)}

QUESTIONS: Mapping[str, PeerQuestion] = {
    "stability-early": PeerQuestion(_BLOWUP, phase=(0.0, 0.25)),
    "stability-mid": PeerQuestion(_BLOWUP, phase=(0.1, 1.0)),
    "stability-spikes": PeerQuestion(
        {"runmedic": ("loss_spikes", "grad_spikes"), "trainspotter": ("spikes", "grad_norm"), "losslint": ("loss_spike",)}
    ),
    "space-infeasible": PeerQuestion(
        {
            "runmedic": ("non_finite", "divergence", "no_learning"),
            "trainspotter": ("divergence",),
            "losslint": ("nan_inf", "divergence"),
        }
    ),
    "curve-overfitting": PeerQuestion(
        {"runmedic": ("overfitting",), "trainspotter": ("overfitting",), "losslint": ("overfit_onset",)}
    ),
    "curve-train-loss-rises": PeerQuestion(_RISE),
    "curve-saturated": PeerQuestion(_FLAT),
    "curve-still-improving": PeerQuestion(_FLAT, absent=True),
    "curve-step-variance": PeerQuestion({"trainspotter": ("eval_noise",)}),
    "curve-worse-than-chance": PeerQuestion({"runmedic": ("no_learning",)}),
    "input-bound": PeerQuestion({"runmedic": ("input_bound",)}),
}

WAYS: Mapping[str, Callable[[Sequence[bool]], bool]] = {
    "any trial": any,
    "the best trial": lambda alarms: alarms[0],
    "a quarter of the trials": lambda alarms: sum(alarms) >= len(alarms) / 4,
    "half of the trials": lambda alarms: sum(alarms) >= len(alarms) / 2,
}
"""Ways to combine the alarms about trials, ordered from the best trial on, into one answer about their study."""
_MIN_POINTS = 5
"""Minimum number of points in the longest curve of a study. The peers cannot read studies that contain only final values."""


def missing_peers() -> list[str]:
    return [name for name in NAMES if find_spec(name) is None]


def ask(study: Study, questions: Iterable[str]) -> dict[str, Answers]:
    """Return {rule: answers of each installed peer}; empty if the study has no curves that the peers can read."""
    if all(len(study.cost_curve(t)) < _MIN_POINTS for t in study.trials):
        return {}
    order = study.ranked()
    order += [t for t in study.trials if t not in order]
    logs = [_log(study, trial) for trial in order]
    not_installed = missing_peers()
    return {
        rule: {
            name: _combine_alarms(QUESTIONS[rule], checks, [_PEERS[name](log) for log in logs])
            for name, checks in QUESTIONS[rule].checks.items()
            if name not in not_installed
        }
        for rule in questions
    }


def _combine_alarms(question: PeerQuestion, checks: Sequence[str], reports: Sequence[Sequence[Alarm]]) -> dict[str, bool]:
    answers = {}
    for name, way in WAYS.items():
        for low, high in {(0.0, 1.0), question.phase}:
            alarms = [any(a.check in checks and not (a.at < low or a.at > high) for a in report) for report in reports]
            answer = way([not a for a in alarms] if question.absent else alarms)
            answers[name if (low, high) == (0.0, 1.0) else f"{name}, in the phase asked for"] = answer
    return answers


# --- curves ---------------------------------------------------------------------------------------------------------------------

_Log: TypeAlias = tuple[tuple[str, tuple[int, ...], tuple[float, ...]], ...]
"""((series, steps, values), …)."""


def _log(study: Study, trial: Trial) -> _Log:
    """Return a trial's curves under names that the peers know. If the objective is not a loss, it is transformed so that lower
    values are better."""
    curves = {
        # The evaluated training loss is preferred: the peers compare it with the validation loss, and batch noise raises false
        # alarms.
        "train_loss": _first_curve(study, trial, "train_eval_loss", "train_loss"),
        "val_loss": _first_curve(study, trial, "valid_loss"),
    }
    if not len(curves["val_loss"]):
        curves["val_loss"] = _positive_cost(study.cost_curve(trial))
    if not len(curves["train_loss"]):
        curves["train_loss"] = _positive_cost(study.train_cost_curve(trial))
    signals: Mapping[str, Signal] = {
        "lr": "learning_rate",
        "grad_norm": "grad_norm",
        "data_time": "data_wait",
        "step_time": "step_time",
    }
    curves |= {name: study.curve(trial, signal) for name, signal in signals.items()}
    return tuple(
        (name, tuple(curve.steps.tolist()), tuple(curve.values.tolist())) for name, curve in curves.items() if len(curve)
    )


def _first_curve(study: Study, trial: Trial, *signals: Signal) -> Curve:
    curves = [study.curve(trial, signal) for signal in signals]
    return next((c for c in curves if len(c)), curves[0])


def _positive_cost(cost: Curve) -> Curve:
    """Replace a fraction that is maximised, such as accuracy, by its complement, because the peers compare ratios of positive
    losses."""
    finite = cost.finite.values
    if not len(finite) or finite.min() >= 0:
        return cost
    whole = next((w for w in (1.0, 100.0) if finite.min() >= -w), None)
    return Curve(cost.steps, cost.values + whole, cost.times) if whole and finite.max() <= 0 else cost


# --- the peers ------------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=20_000)
def _runmedic(log: _Log) -> tuple[Alarm, ...]:
    checks, model, roles = (import_module(f"runmedic.{part}") for part in ("checks", "model", "roles"))
    run = model.Run(name="trial", source="csv", path="trial.csv")
    for name, steps, values in log:
        for step, value in zip(steps, values, strict=True):
            run.get(name).add(step, value)
    run.finalize()
    return tuple(Alarm(f.check, _position_of_step(f.step, log)) for f in checks.run_checks(run, roles.detect(run)))


@lru_cache(maxsize=20_000)
def _trainspotter(log: _Log) -> tuple[Alarm, ...]:
    detectors, model = (import_module(f"trainspotter.{part}") for part in ("detectors", "model"))
    names = {"train_loss": "train/loss", "val_loss": "eval/loss"}
    run = model.Run()
    for name, steps, values in log:
        for step, value in zip(steps, values, strict=True):
            run.add_point(names.get(name, name), step, value)
    run.finalize()
    return tuple(Alarm(f.detector, _position_of_step(f.step_start, log)) for f in detectors.run_all(run))


@lru_cache(maxsize=20_000)
def _losslint(log: _Log) -> tuple[Alarm, ...]:
    checks, parsing = (import_module(f"losslint.{part}") for part in ("checks", "parsing"))
    all_steps = sorted({step for _, steps, _ in log for step in steps})
    names = {"train_loss": "loss", "val_loss": "eval_loss"}
    series: dict[str, list[float | None]] = {}
    for name, steps, values in log:
        points = dict(zip(steps, values, strict=True))
        series[names.get(name, name)] = [points.get(step) for step in all_steps]
    findings = checks.run_all_checks(parsing.RunLog(steps=all_steps, series=series, source=Path("trial.csv")))
    return tuple(Alarm(f.check, _position_of_step((f.details.get("steps") or [None])[0], log)) for f in findings)


_PEERS: Mapping[str, Callable[[_Log], tuple[Alarm, ...]]] = {
    "runmedic": _runmedic,
    "trainspotter": _trainspotter,
    "losslint": _losslint,
}


def _position_of_step(step: float | None, log: _Log) -> float:
    """Return the position of a step in the training, from 0 to 1."""
    last = max((steps[-1] for _, steps, _ in log), default=0)
    return math.nan if step is None or last <= 0 else float(np.clip(step / last, 0, 1))
