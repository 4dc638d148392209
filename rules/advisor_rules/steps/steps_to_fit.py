"""The rule `steps-to-fit`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from advisor.computed.curves import curve_tails
from advisor.computed.space import failures
from advisor.computed.stability import instability
from advisor.engine.rule import Count, Factor, Rule, Share
from advisor.model.change import Change, RunPlan, SetField
from advisor.model.evidence import CurveEvidence, FigureEvidence, Mark
from advisor.model.finding import Finding, Goal, MissingData, Side
from advisor.model.study import Study, Trial


class StepsToFit(Rule):
    """A sweep of constant learning rates shows how many steps it takes to fit the training data, the first `max_train_steps`.

    ## What it looks at
    The trials of a study that looks for the first `max_train_steps` (`advisor init --find-steps N`), and of each how well it fits
    its training data: an evaluation on them where there is one, else the loss of the batches, as the median of the last few values.
    The data are fitted perfectly where 1 % of the way from the first value to a perfect score is left. The fastest trial counts.

    ## Why it matters
    Too few steps, and no setting can show what it is worth; far too many, and each trial costs a multiple of what it had to. The
    length is hard to change later, once a schedule is tuned for it.

    ## What to do
    Take the steps of the fastest trial as the first `max_train_steps`, and refine them from where the best steps lie
    (`step-position`). With the fastest learning rate at an end of those that were tried the number says nothing: all of them may be
    too small, so the sweep is moved by a decade. Where no trial fits its data, repeat it with four times the steps, or see training
    as limited by compute.

    ## How sure
    When the loss fell below the level is read off, not estimated. Confidence is that of the order of the learning rates: the share
    of those next to the fastest that are slower, 0.5 where it lies at an end.

    *Example:* "Training with learning_rate 0.03 fits the training data in 2,400 steps, the fastest of 8."
    """

    playbook: ClassVar[str] = (
        "Algorithm for picking an initial candidate for max_train_steps using a learning rate sweep"
    )
    goal: ClassVar[Goal] = "steps"
    probes: ClassVar[frozenset[str]] = frozenset({"steps"})

    perfect: Share = 0.01
    """Share of the way to a perfect score on the training data that a perfect fit may leave."""
    smooth: Count = 5
    """Values of which the median must have come so far: one lucky batch is no fit."""
    evaluations: Count = 50
    """Evaluations over the training that follows, enough for its curves."""
    more: Factor = 4.0
    """How many times the steps to try where no trial fits its data; ours."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield what the sweep found."""
        if study.probe != "steps":
            raise MissingData(
                "the trials are not a sweep that looks for the first max_train_steps; `advisor init` writes one"
            )
        runs = self._runs(study)
        if not runs:
            raise MissingData("no trial logged a loss on its training data; log the training loss at every step")
        fitted = [r for r in runs if math.isfinite(r.steps)]
        if not fitted:
            yield self._none(study, runs)
            return
        fastest = min(fitted, key=lambda r: (r.steps, r.rate))
        side = self._end(study, runs, fastest)
        yield self._at_end(study, runs, fastest, side) if side else self._found(study, runs, fastest)

    def _runs(self, study: Study) -> list[_Run]:
        """The trials that did not crash, lowest learning rate first."""
        crashed = failures.failures(study).crashed
        runs = []
        for trial in study.trials:
            curve, rate = study.train_cost_curve(trial).finite, instability.rate_of(study, trial)
            if study.ended[trial.index] and not crashed[trial.index] and len(curve) >= self.smooth and rate > 0:
                runs.append(_Run(trial, rate, self._steps(curve.steps.astype(float), curve.values)))
        return sorted(runs, key=lambda r: r.rate)

    def _steps(self, steps: np.ndarray, costs: np.ndarray) -> float:
        """The first step from which the running median is that of a perfect fit; infinite if it never is."""
        windows = np.lib.stride_tricks.sliding_window_view(costs, self.smooth)
        middle = np.median(windows, axis=1)
        if costs.min() < -1 or (costs.min() < 0 < costs.max()):
            return math.inf
        floor = 0.0 if costs.min() >= 0 else -1.0
        reached = np.flatnonzero(middle - floor <= self.perfect * (costs[0] - floor))
        return float(steps[reached[0] + self.smooth - 1]) if len(reached) and costs[0] > floor else math.inf

    def _end(self, study: Study, runs: list[_Run], fastest: _Run) -> Side | None:
        """The end of the learning rates at which the fastest lies; rates above it that failed are no reason to go on there."""
        if fastest is runs[0]:
            return "low"
        return "high" if fastest is runs[-1] and not failures.failures(study).any.any() else None

    def _found(self, study: Study, runs: list[_Run], fastest: _Run) -> Finding:
        steps = curve_tails.round_up(fastest.steps)
        at = runs.index(fastest)
        beside = [*runs[max(at - 1, 0) : at], *runs[at + 1 : at + 2]]
        said = f"Training with {_rate(study)} {fastest.rate:.3g} fits the training data in {fastest.steps:,.0f} steps"
        why = f"{said}, the fastest of {len(runs)} constant learning rates"
        return self._finding(
            f"{said}, the fastest of {len(runs)}.",
            action=f"Train for {steps:,} steps to begin with, and refine that from where the best steps lie.",
            sure=sum(r.steps > fastest.steps for r in beside) / len(beside) if beside else 0.5,
            study=study,
            runs=runs,
            fastest=fastest,
            changes=(
                SetField(field="max_train_steps", value=steps, why=why),
                SetField(field="evaluate_every", value=max(steps // self.evaluations, 1), why=why),
            ),
        )

    def _at_end(self, study: Study, runs: list[_Run], fastest: _Run, side: Side) -> Finding:
        low, high = runs[0].rate, runs[-1].rate
        low, high = (low / 10, high / 10) if side == "low" else (low * 10, high * 10)
        end = "lowest" if side == "low" else "highest"
        return self._finding(
            f"The {end} {_rate(study)}, {fastest.rate:.3g}, fits the training data fastest, in {fastest.steps:,.0f} steps, so the "
            "number says nothing yet.",
            action=f"Sweep {_rate(study)} from {low:.3g} to {high:.3g} before choosing max_train_steps.",
            sure=0.95,
            study=study,
            runs=runs,
            fastest=fastest,
            changes=(self._again(study, low, high, 1.0, f"The fastest learning rate is the {end} that was tried"),),
        )

    def _none(self, study: Study, runs: list[_Run]) -> Finding:
        steps = study.spec.max_train_steps or 0
        return self._finding(
            f"None of {len(runs)} constant learning rates fits the training data within {steps:,} steps.",
            action=f"Repeat the sweep with {self.more:g} times the steps; if that is too long, compute limits this training.",
            sure=0.95,
            study=study,
            runs=runs,
            fastest=None,
            changes=(
                self._again(study, runs[0].rate, runs[-1].rate, self.more, f"{steps:,} steps fit no training data"),
            ),
        )

    def _again(self, study: Study, low: float, high: float, times: float, why: str) -> RunPlan:
        numbers = {"low": low, "high": high, "steps": times * (study.spec.max_train_steps or 1)}
        return RunPlan(plan="steps-initial", parameter=_rate(study), numbers=numbers, why=why)

    def _finding(
        self,
        message: str,
        *,
        action: str,
        sure: float,
        study: Study,
        runs: list[_Run],
        fastest: _Run | None,
        changes: tuple[Change, ...],
    ) -> Finding:
        metric = next(
            (m for s in ("train_objective", "train_eval_loss", "train_loss") if (m := study.signals.get(s))), ""
        )
        shown = [fastest] if fastest else runs
        marks = [Mark(trial=r.trial.id, step=int(r.steps), label="fitted") for r in runs if math.isfinite(r.steps)]
        return self.finding(
            message,
            action=action,
            severity="note",
            confidence=sure,
            subject=_rate(study),
            trials=[r.trial for r in shown],
            evidence=(
                CurveEvidence(
                    metrics=(metric,),
                    caption=message,
                    trials=tuple(r.trial.id for r in runs),
                    marks=tuple(marks),
                ),
                FigureEvidence(rows=tuple((f"steps at {r.rate:.3g}", _steps(r.steps)) for r in runs)),
            ),
            changes=changes,
        )


@dataclass(frozen=True)
class _Run:
    trial: Trial
    rate: float
    steps: float
    """To a perfect fit; infinite if it was not reached."""


def _steps(steps: float) -> str:
    return f"{steps:,.0f}" if math.isfinite(steps) else "not fitted"


def _rate(study: Study) -> str:
    return instability.rate_name(study) or "the learning rate"
