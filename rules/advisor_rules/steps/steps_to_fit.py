"""Implements the rule `steps-to-fit`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from advisor.computed.space import failures
from advisor.engine.rule import Count, Factor, Rule, Share
from advisor.model.change import Change, RunPlan, SetField
from advisor.model.evidence import Mark, curve_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.learning_rate import peak_learning_rate, rate_name
from advisor.model.message import Message, Name, Number, say
from advisor.model.space import FloatArray, RangeSide, round_up_steps
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
    The step of a perfect fit is read from the training curve, not estimated. Confidence is the share of the learning rates next
    to the fastest one that are slower; it is 0.5 if no neighbouring rate was tried.
    """

    playbook = "Algorithm for picking an initial candidate for max_train_steps using a learning rate sweep"
    goal = "steps"
    probes = frozenset({"steps"})

    perfect: Share = 0.01
    """Maximum distance from a perfect score on the training data, as a share of the initial distance, that counts as a perfect
    fit.
    """
    smooth: Count = 5
    """Number of values whose median must reach a perfect fit; more than 1, so that one lucky batch does not count as a perfect
    fit."""
    evaluations: Count = 50
    """Number of evaluations in the following trainings, enough to show their curves."""
    more: Factor = 4.0
    """Factor by which the number of steps grows if no trial fits its data. Our choice."""

    def check(self, study: Study) -> Iterator[Finding]:
        if study.probe != "steps":
            raise MissingData(
                "the trials are not a sweep that looks for the first max_train_steps; `advisor init` writes one", needs="design"
            )
        runs = self._runs_by_rate(study)
        if not runs:
            raise MissingData(
                "no trial logged a loss on its training data; log the training loss at every step", needs="train_loss"
            )
        fitting_runs = [r for r in runs if math.isfinite(r.steps)]
        if not fitting_runs:
            yield self._report_no_perfect_fit(study, runs)
            return
        fastest = min(fitting_runs, key=lambda r: (r.steps, r.rate))
        side = _boundary_of_fastest_rate(study, runs, fastest)
        yield (
            self._report_fastest_at_boundary(study, runs, fastest, side)
            if side
            else self._report_fastest_in_range(study, runs, fastest)
        )

    def _runs_by_rate(self, study: Study) -> list[_SweepRun]:
        """Return the trials that did not crash, lowest learning rate first."""
        crashed = failures.failure_masks(study).crashed
        runs = []
        for trial in study.trials:
            curve, rate = study.train_cost_curve(trial).finite, peak_learning_rate(study, trial)
            if study.ended[trial.index] and not crashed[trial.index] and len(curve) >= self.smooth and rate > 0:
                runs.append(_SweepRun(trial, rate, self._steps_to_perfect_fit(curve.steps.astype(float), curve.values)))
        return sorted(runs, key=lambda r: r.rate)

    def _steps_to_perfect_fit(self, steps: FloatArray, costs: FloatArray) -> float:
        """Return the first step at which the running median reaches a perfect fit; infinite if it never does."""
        windows = np.lib.stride_tricks.sliding_window_view(costs, self.smooth)
        middle = np.median(windows, axis=1)
        if costs.min() < -1 or (costs.min() < 0 < costs.max()):
            return math.inf
        floor = 0.0 if costs.min() >= 0 else -1.0
        reached = np.flatnonzero(middle - floor <= self.perfect * (costs[0] - floor))
        return float(steps[reached[0] + self.smooth - 1]) if len(reached) and costs[0] > floor else math.inf

    def _report_fastest_in_range(self, study: Study, runs: list[_SweepRun], fastest: _SweepRun) -> Finding:
        steps = round_up_steps(fastest.steps)
        at = runs.index(fastest)
        beside = [*runs[max(at - 1, 0) : at], *runs[at + 1 : at + 2]]
        what = say(
            "Training with {name} {rate} fits the training data in {steps} steps, the fastest of {runs}",
            name=Name(_learning_rate_name(study)),
            rate=Number(fastest.rate),
            steps=round(fastest.steps),
            runs=len(runs),
        )
        why = f"{what} constant learning rates"
        return self._build_finding(
            say("{what}.", what=what),
            action=say(
                "Train for {steps} steps to begin with, and refine this number by the position of the best steps.", steps=steps
            ),
            confidence=sum(r.steps > fastest.steps for r in beside) / len(beside) if beside else 0.5,
            study=study,
            runs=runs,
            shown_runs=[fastest],
            changes=(
                SetField(field="max_train_steps", value=steps, why=why),
                SetField(field="evaluate_every", value=max(steps // self.evaluations, 1), why=why),
            ),
        )

    def _report_fastest_at_boundary(self, study: Study, runs: list[_SweepRun], fastest: _SweepRun, side: RangeSide) -> Finding:
        divisor, factor, end = (10, 1, "lowest") if side == "low" else (1, 10, "highest")
        low, high = factor * runs[0].rate / divisor, factor * runs[-1].rate / divisor
        name = Name(_learning_rate_name(study))
        return self._build_finding(
            say(
                "The {end} {name}, {rate}, fits the training data fastest, in {steps} steps. Rates beyond this one are "
                "possibly faster.",
                end=end,
                name=name,
                rate=Number(fastest.rate),
                steps=round(fastest.steps),
            ),
            action=say(
                "Sweep {name} from {low} to {high} before choosing max_train_steps.",
                name=name,
                low=Number(low),
                high=Number(high),
            ),
            confidence=0.95,
            study=study,
            runs=runs,
            shown_runs=[fastest],
            changes=(_repeat_sweep(study, low, high, 1.0, f"The fastest learning rate is the {end} rate that was tried"),),
        )

    def _report_no_perfect_fit(self, study: Study, runs: list[_SweepRun]) -> Finding:
        steps = study.spec.max_train_steps or 0
        why = f"No learning rate fits the training data within {steps:,} steps"
        return self._build_finding(
            say("None of {n} constant learning rates fits the training data within {steps} steps.", n=len(runs), steps=steps),
            action=say(
                "Repeat the sweep with {times} times the steps. If that is too expensive, compute limits this training.",
                times=Number(self.more),
            ),
            confidence=0.95,
            study=study,
            runs=runs,
            shown_runs=runs,
            changes=(_repeat_sweep(study, runs[0].rate, runs[-1].rate, self.more, why),),
        )

    def _build_finding(
        self,
        message: Message,
        *,
        action: Message,
        confidence: float,
        study: Study,
        runs: list[_SweepRun],
        shown_runs: list[_SweepRun],
        changes: tuple[Change, ...],
    ) -> Finding:
        signals: tuple[Signal, ...] = ("train_objective", "train_eval_loss", "train_loss")
        metric = next((m for s in signals if (m := study.signals.get(s))), "")
        marks = [Mark(trial=r.trial.id, step=int(r.steps), label="fitted") for r in runs if math.isfinite(r.steps)]
        rows = ((f"steps at {plain_number(r.rate, 3)}", _fit_steps_text(r.steps)) for r in runs)
        return self.finding(
            message,
            action=action,
            severity="note",
            confidence=confidence,
            subject=_learning_rate_name(study),
            trials=[r.trial for r in shown_runs],
            evidence=(curve_plot(metric, message, [r.trial for r in runs], marks=tuple(marks)), table(*rows)),
            changes=changes,
        )


@dataclass(frozen=True)
class _SweepRun:
    trial: Trial
    rate: float
    steps: float
    """Steps to a perfect fit; infinite if the trial does not reach one."""


def _boundary_of_fastest_rate(study: Study, runs: list[_SweepRun], fastest: _SweepRun) -> RangeSide | None:
    """Return the end of the range of learning rates at which the fastest trial lies; None if this trial lies inside the range
    or if higher rates fail."""
    if fastest is runs[0]:
        return "low"
    return "high" if fastest is runs[-1] and not failures.failure_masks(study).any.any() else None


def _repeat_sweep(study: Study, low: float, high: float, times: float, why: str) -> RunPlan:
    """Return the plan to repeat the sweep from `low` to `high` with `times` as many steps."""
    numbers = {"low": low, "high": high, "steps": times * (study.spec.max_train_steps or 1)}
    return RunPlan(plan="steps-initial", parameter=_learning_rate_name(study), numbers=numbers, why=why)


def _fit_steps_text(steps: float) -> Message:
    return say("{steps}", steps=round(steps)) if math.isfinite(steps) else say("not fitted")


def _learning_rate_name(study: Study) -> str:
    return rate_name(study) or "the learning rate"
