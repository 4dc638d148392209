from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from advisor.computed.space import failures
from advisor.engine.rule import Count, Factor, Rule, Share
from advisor.model.change import Change, RunPlan, SetField
from advisor.model.evidence import Mark, curve_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.learning_rate import peak_learning_rate, rate_name
from advisor.model.message import Message, MessagePart, Name, say
from advisor.model.space import FloatArray, round_up_steps
from advisor.model.study import Signal, Study, Trial
from advisor.model.words import plain_number


class StepsToFit(Rule):
    """A sweep of constant learning rates shows how many steps it takes to fit the training data, as a first choice of
    `max_train_steps`.

    ## What it looks at
    The rule evaluates a study that looks for the first `max_train_steps` (`advisor init --find-steps N`), by how well each
    trial fits its training data. The fit at a step is the median of the last 5 evaluations on the training data or, without
    evaluations, of the last 5 losses of batches. The fit is perfect if its distance from a perfect score is at most 1 % of the
    initial distance. Only the trial that reaches a perfect fit first counts.

    ## Why it matters
    With too few steps, no setting can show its quality; with far too many, each trial costs several times as much as needed.
    The training length is hard to change later, after a schedule has been tuned for this length.

    ## What to do
    Use the number of steps of the fastest trial as the first `max_train_steps`, and refine it by the position of the best steps
    (`step-position`). If the fastest learning rate is the lowest or highest one tried, move the sweep by a decade first. If no
    trial fits its data, repeat the sweep with four times the steps, or treat training as limited by compute.

    ## How sure
    The step of a perfect fit is read from the training curve, not estimated. Of the two learning rates next to the fastest one,
    the share that fits its data later is the confidence; it is 0.5 if neither was tried.
    """

    playbook = "Algorithm for picking an initial candidate for max_train_steps using a learning rate sweep"
    goal = "steps"
    probes = frozenset({"steps"})

    perfect: Share = 0.01
    """Maximum distance from a perfect score on the training data, as a share of the initial distance, that counts as a perfect
    fit."""
    smooth: Count = 5
    """Number of values whose median must reach a perfect fit; more than 1, so that one lucky batch does not count as a perfect
    fit."""
    evaluations: Count = 50
    """Number of evaluations in the following trainings, enough to show their curves."""
    more: Factor = 4.0
    """Factor by which the number of steps grows if no trial fits its data. Our choice."""

    def check(self, study: Study) -> Iterator[Finding]:
        if study.probe != "steps":
            reason = "the trials are not a sweep that looks for the first max_train_steps; `advisor init` writes one"
            raise MissingData(reason, needs="design")
        runs = self._runs_by_rate(study)
        if not runs:
            reason = "no trial logged a loss on its training data; log the training loss at every step"
            raise MissingData(reason, needs="train_loss")
        fitting_runs = [r for r in runs if math.isfinite(r.steps)]
        if not fitting_runs:
            yield self._build_finding(study, runs, runs, self._advise_more_steps(study, runs))
            return
        fastest = min(fitting_runs, key=lambda r: (r.steps, r.rate))
        # If higher rates fail, the sweep need not go on to higher ones.
        if fastest is runs[0] or (fastest is runs[-1] and not failures.failure_masks(study).has_failed.any()):
            advice = _advise_other_rates(study, runs, fastest)
        else:
            advice = self._advise_steps_of_fastest(study, runs, fastest)
        yield self._build_finding(study, runs, [fastest], advice)

    def _runs_by_rate(self, study: Study) -> list[_SweepRun]:
        has_crashed = failures.failure_masks(study).crashed
        runs = []
        for trial in study.trials:
            curve, rate = study.train_cost_curve(trial).finite, peak_learning_rate(study, trial)
            if study.ended[trial.index] and not has_crashed[trial.index] and len(curve) >= self.smooth and rate > 0:
                runs.append(_SweepRun(trial, rate, self._steps_to_perfect_fit(curve.steps.astype(float), curve.values)))
        return sorted(runs, key=lambda r: r.rate)

    def _steps_to_perfect_fit(self, steps: FloatArray, costs: FloatArray) -> float:
        windows = np.lib.stride_tricks.sliding_window_view(costs, self.smooth)
        running_medians = np.median(windows, axis=1)
        if costs.min() < -1 or (costs.min() < 0 < costs.max()):
            return math.inf
        floor = 0.0 if costs.min() >= 0 else -1.0
        perfect_indices = np.flatnonzero(running_medians - floor <= self.perfect * (costs[0] - floor))
        return float(steps[perfect_indices[0] + self.smooth - 1]) if len(perfect_indices) and costs[0] > floor else math.inf

    def _advise_steps_of_fastest(self, study: Study, runs: list[_SweepRun], fastest: _SweepRun) -> _SweepAdvice:
        steps, fastest_index = round_up_steps(fastest.steps), runs.index(fastest)
        neighbours = [*runs[max(fastest_index - 1, 0) : fastest_index], *runs[fastest_index + 1 : fastest_index + 2]]
        name, fitted_steps = Name(_learning_rate_name(study)), round(fastest.steps)
        text = (
            "Training with {name} {rate} fits the training data in {steps} steps, the fastest of {runs} constant learning rates"
        )
        statement = say(text, name=name, rate=fastest.rate, steps=fitted_steps, runs=len(runs))
        advice = "Train for {steps} steps to begin with, and refine this number by the position of the best steps."
        why = str(statement)
        return _SweepAdvice(
            say("{what}.", what=statement),
            say(advice, steps=steps),
            sum(r.steps > fastest.steps for r in neighbours) / len(neighbours) if neighbours else 0.5,
            (
                SetField(field="max_train_steps", value=steps, why=why),
                SetField(field="evaluate_every", value=max(steps // self.evaluations, 1), why=why),
            ),
        )

    def _advise_more_steps(self, study: Study, runs: list[_SweepRun]) -> _SweepAdvice:
        steps = study.spec.max_train_steps or 0
        text = "None of {n} constant learning rates fits the training data within {steps} steps."
        advice = "Repeat the sweep with {times} times the steps. If that is too expensive, compute limits this training."
        why = f"No learning rate fits the training data within {steps:,} steps"
        plan = _repeat_sweep(study, runs[0].rate, runs[-1].rate, self.more, why)
        return _SweepAdvice(say(text, n=len(runs), steps=steps), say(advice, times=self.more), 0.95, (plan,))

    def _build_finding(self, study: Study, runs: list[_SweepRun], shown: list[_SweepRun], advice: _SweepAdvice) -> Finding:
        signals: tuple[Signal, ...] = ("train_objective", "train_eval_loss", "train_loss")
        metric = next((m for s in signals if (m := study.signals.get(s))), "")
        marks = [
            Mark(trial=r.trial.id, step=int(r.steps), label="training data fitted") for r in runs if math.isfinite(r.steps)
        ]
        rows: list[tuple[str, MessagePart | float]] = [
            (f"steps at {plain_number(r.rate, 3)}", round(r.steps) if math.isfinite(r.steps) else "not fitted") for r in runs
        ]
        return self.finding(
            advice.message,
            action=advice.action,
            severity="note",
            confidence=advice.confidence,
            subject=_learning_rate_name(study),
            trials=[r.trial for r in shown],
            evidence=(curve_plot(metric, advice.message, [r.trial for r in runs], marks=marks), table(*rows)),
            changes=advice.changes,
        )


class _SweepAdvice(NamedTuple):
    message: Message
    action: Message
    confidence: float
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class _SweepRun:
    trial: Trial
    rate: float
    steps: float
    """Steps to a perfect fit; infinite if the trial does not reach one."""


def _advise_other_rates(study: Study, runs: list[_SweepRun], fastest: _SweepRun) -> _SweepAdvice:
    divisor, factor, end_name = (10, 1, "lowest") if fastest is runs[0] else (1, 10, "highest")
    low, high = factor * runs[0].rate / divisor, factor * runs[-1].rate / divisor
    name, steps = Name(_learning_rate_name(study)), round(fastest.steps)
    text = f"The {end_name} {{name}}, {{rate}}, fits the training data fastest, in {{steps}} steps. Rates beyond this one are "
    return _SweepAdvice(
        say(f"{text}possibly faster.", name=name, rate=fastest.rate, steps=steps),
        say("Sweep {name} from {low} to {high} before choosing max_train_steps.", name=name, low=low, high=high),
        0.95,
        (_repeat_sweep(study, low, high, 1.0, f"The fastest learning rate is the {end_name} rate that was tried"),),
    )


def _repeat_sweep(study: Study, low: float, high: float, times: float, why: str) -> RunPlan:
    numbers = {"low": low, "high": high, "steps": times * (study.spec.max_train_steps or 1)}
    return RunPlan(plan="steps-initial", parameter=_learning_rate_name(study), numbers=numbers, why=why)


def _learning_rate_name(study: Study) -> str:
    return rate_name(study) or "the learning rate"
