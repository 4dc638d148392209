"""Situations about what was logged: summaries, missing levels, directions, several objectives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from worlds.sampled import (
    accuracy_curve,
    accuracy_metrics,
    evaluation_steps,
    log_study,
    quality_of,
    reports,
    sample_settings,
    trial_count,
)
from worlds.world import Outcome, Random, SimulatedStudy, Situation, Store

# --- summaries ------------------------------------------------------------------------------------------------------------------


def _final_summary_study(rng: Random, *, early: bool = False, last: bool = False) -> SimulatedStudy:
    """Return a study that logs a final value without a step, as Optuna's MLflow callback does. early: also evaluate before the
    first step."""
    store, metric = Store(), str(rng.choice(["val_acc", "val/accuracy", "eval_f1"]))
    steps = evaluation_steps(rng)
    for setting in sample_settings(rng, trial_count(rng)):
        accuracy = accuracy_curve(rng, steps, quality_of(rng, setting))
        at, values = (np.r_[0, steps], np.r_[0.1, accuracy]) if early else (steps, accuracy)
        final = accuracy[-1] if last else accuracy.max()
        metrics = accuracy_metrics(rng, steps, accuracy, metric) | {metric: (at, values)}
        store.log(setting, metrics, late={metric: ([0], [final])})
    return SimulatedStudy(store.experiment(), truth={"metric": metric, "points": len(steps) + early})


def _takes_summary_for_point(outcome: Outcome) -> bool:
    if outcome.report is None:
        return True
    rows = outcome.report.figures.trials
    learned = bool(outcome.fired("many-stopped", "many-diverged")) or "learned nothing" in outcome.text
    wrong = any(
        row.status != "complete" or row.evaluations != outcome.made.truth["points"] or row.best_step == 0 for row in rows
    )
    return learned or wrong or not reports(outcome, "without a step")


def _study_evaluated_first(rng: Random) -> SimulatedStudy:
    """Return a healthy study in which step 0 has a real evaluation."""
    store, steps = Store(), evaluation_steps(rng)
    for setting in sample_settings(rng, trial_count(rng)):
        accuracy = np.r_[0.1 + rng.normal(0, 0.01), accuracy_curve(rng, steps, quality_of(rng, setting))]
        store.log(setting, accuracy_metrics(rng, np.r_[0, steps], accuracy, "val_acc"))
    return SimulatedStudy(store.experiment(), truth={"points": len(steps) + 1})


def _loses_point(outcome: Outcome) -> bool:
    return outcome.report is None or any(
        row.evaluations != outcome.made.truth["points"] for row in outcome.report.figures.trials
    )


def _late_collapse_study(rng: Random) -> SimulatedStudy:
    """Return a study in which the trial with the best single step has a worse final value, which the tuner compared, than another
    trial."""
    store, steps = Store(), evaluation_steps(rng)
    settings = sample_settings(rng, trial_count(rng))
    best = max(range(len(settings)), key=lambda i: quality_of(rng, settings[i]))
    for i, setting in enumerate(settings):
        accuracy = accuracy_curve(rng, steps, 0.96 if i == best else min(quality_of(rng, setting), 0.94))
        if i == best:
            accuracy[-1] -= 0.06
        store.log(setting, accuracy_metrics(rng, steps, accuracy, "val_acc"), late={"val_acc": ([0], [accuracy[-1]])})
    return SimulatedStudy(store.experiment())


# --- levels and direction -------------------------------------------------------------------------------------------------------


def _study_with_none_level(rng: Random) -> SimulatedStudy:
    name = str(rng.choice(["scheduler", "max_depth", "augmentation", "clip_norm"]))
    choices: dict[str, list[Any]] = {
        "scheduler": ["cosine"],
        "max_depth": [4, 8],
        "augmentation": ["flip", "crop"],
        "clip_norm": [1.0],
    }
    levels = choices[name]
    settings = [s | {name: rng.choice(np.array([None, *levels], dtype=object))} for s in sample_settings(rng, trial_count(rng))]
    return SimulatedStudy(log_study(rng, settings).experiment(), truth={"name": name, "levels": 1 + len(levels)})


def _drops_level(outcome: Outcome) -> bool:
    name = outcome.made.truth["name"]
    parameter = outcome.report.spec.parameters.get(name) if outcome.report is not None else None
    return parameter is None or len(parameter.options) != outcome.made.truth["levels"] or "None" not in parameter.options


def _none_means_absent(rng: Random) -> SimulatedStudy:
    settings = []
    for s in sample_settings(rng, trial_count(rng)):
        adam = bool(rng.random() < 0.5)
        momentum = None if adam else round(float(rng.uniform(0.5, 0.99)), int(rng.choice([1, 2, 8])))
        settings.append(s | {"optimizer": "adam" if adam else "sgd", "momentum": momentum})
    return SimulatedStudy(log_study(rng, settings).experiment())


def _takes_absence_for_level(outcome: Outcome) -> bool:
    parameter = outcome.report.spec.parameters.get("momentum") if outcome.report is not None else None
    return parameter is None or "None" in parameter.options


def _contradictory_direction(rng: Random) -> SimulatedStudy:
    """Return a study in which the stated direction of the objective contradicts the metric's name."""
    accuracy = bool(rng.random() < 0.6)
    metric = str(rng.choice(["val_accuracy", "valid/f1", "eval_auc"] if accuracy else ["val_loss", "val/error", "eval_wer"]))
    wrong = "minimize" if accuracy else "maximize"
    how = str(rng.choice(["hook", "optuna", "param"]))
    tags: dict[str, str] = {}
    extra: dict[str, str] = {}
    if how == "hook":
        tags = {"advisor.objective": metric, "advisor.direction": wrong}
    elif how == "optuna":
        tags = {"number": "0", "state": "COMPLETE", "direction": wrong.upper()}
    else:
        extra = {"monitor": metric, "mode": wrong[:3]}
    store, steps = Store(), evaluation_steps(rng)
    for setting in sample_settings(rng, trial_count(rng)):
        values = accuracy_curve(rng, steps, quality_of(rng, setting))
        store.log(setting | extra, {metric: (steps, values if accuracy else 1 - values)}, tags=tags)
    # The param `mode` is a user's choice, while a tag with the direction is often a default.
    return SimulatedStudy(store.experiment(), truth={"minimize": accuracy if how == "param" else not accuracy})


def _consistent_direction(rng: Random) -> SimulatedStudy:
    """Return a healthy study: the stated direction agrees with the metric's name, or the name implies no direction."""
    metric = str(rng.choice(["val_accuracy", "val_score", "val_quality"]))
    tags = {"advisor.objective": metric, "advisor.direction": "minimize" if metric == "val_score" else "maximize"}
    return SimulatedStudy(log_study(rng, sample_settings(rng, trial_count(rng)), metric=metric, tags=tags).experiment())


def _misses_direction(outcome: Outcome) -> bool:
    if outcome.report is None:
        return True
    right = outcome.report.minimize == outcome.made.truth["minimize"]
    return not right or not any("contradicts" in w for w in outcome.report.warnings)


# --- objectives -----------------------------------------------------------------------------------------------------------------


def _study_of_two_objectives(rng: Random, *, disagree: bool) -> SimulatedStudy:
    """Return a study with accuracy and loss on validation data; with `disagree`, they prefer opposite ends of the learning rate's
    range."""
    store, steps = Store(), evaluation_steps(rng)
    sign = 1 if rng.random() < 0.5 else -1
    for s in sample_settings(rng, max(trial_count(rng), 16)):
        position = sign * (math.log10(s["lr"]) + 2) / 1.5
        accuracy = accuracy_curve(rng, steps, 0.85 + 0.06 * position)
        direction = 1 if disagree else -1
        loss = 0.6 + 0.2 * direction * position + 0.5 * np.exp(-4 * steps / steps[-1]) + rng.normal(0, 0.01, len(steps))
        store.log(s, {"val_accuracy": (steps, accuracy), "val_loss": (steps, loss)})
    return SimulatedStudy(store.experiment())


def _disagreements(outcome: Outcome) -> int:
    return sum("metrics disagree" in w for w in outcome.report.warnings) if outcome.report is not None else -1


SITUATIONS: tuple[Situation, ...] = (
    Situation(
        "A20 best value without a step at the end",
        "counts as a point, or is not reported",
        _final_summary_study,
        _takes_summary_for_point,
    ),
    Situation(
        "A20b the same after an evaluation at step 0",
        "as above",
        lambda r: _final_summary_study(r, early=True),
        _takes_summary_for_point,
    ),
    Situation(
        "A20c last value without a step at the end",
        "as above",
        lambda r: _final_summary_study(r, last=True),
        _takes_summary_for_point,
    ),
    Situation("A20n healthy: a first evaluation at step 0", "a point is lost", _study_evaluated_first, _loses_point),
    Situation(
        "A21 best by best step is not best by last value",
        "not reported",
        _late_collapse_study,
        lambda o: not reports(o, "tuners compare"),
    ),
    Situation("A22 None among the values", "a level is dropped", _study_with_none_level, _drops_level),
    Situation("A22n healthy: None where it does not exist", "None is a level", _none_means_absent, _takes_absence_for_level),
    Situation(
        "A23 stated direction contradicts the name",
        "not reported, or the wrong direction",
        _contradictory_direction,
        _misses_direction,
    ),
    Situation(
        "A23n healthy: stated direction fits the name",
        "a contradiction is seen",
        _consistent_direction,
        lambda o: o.report is None or reports(o, "contradicts"),
    ),
    Situation(
        "A32 objectives that disagree",
        "not one warning",
        lambda r: _study_of_two_objectives(r, disagree=True),
        lambda o: _disagreements(o) != 1,
    ),
    Situation(
        "A32n healthy: objectives that agree",
        "a warning",
        lambda r: _study_of_two_objectives(r, disagree=False),
        lambda o: _disagreements(o) != 0,
    ),
)
