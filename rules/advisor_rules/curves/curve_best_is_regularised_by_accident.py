from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations
from typing import Literal

import numpy as np
from scipy import stats

from advisor.computed.curves.overfit import (
    Overfit,
    measure_overfitting_of_trials,
    regulariser_changes,
    regulariser_phrase,
    significant_overfits,
)
from advisor.engine.rule import Relation, Rule, Share
from advisor.model.change import Advise
from advisor.model.evidence import AxisEvidence, FigureEvidence, Mark, curve_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.learning_rate import searched_learning_rates
from advisor.model.message import Name, Number, Objective, Probability, Setting, say
from advisor.model.parameter_kinds import is_regulariser
from advisor.model.space import FloatArray
from advisor.model.study import Study, Trial

_MIN_TRIALS = 5
"""Minimum number of trials at which both rank correlations (with the learning rate and with the training cost) can be
significant at the 5 % level."""
_MIN_EVALUATIONS = 6
_MAX_EXACT_TEST_TRIALS = 8
"""Maximum number of trials for an exact p-value; with more trials, Student's t-distribution gives the p-value."""


@dataclass(frozen=True)
class _OverfitByRate:
    """The overfitting of n trials, ordered by learning rate. Trials at a higher rate than the best trial's are left out if they
    fit the training data no better, because their problem is not overfitting."""

    name: str
    rates: FloatArray
    overfits: tuple[Overfit, ...]
    train_costs: FloatArray
    """Training cost at the end of each trial, shape (n,)."""
    p_for_rate: float
    """p-value of the hypothesis that overfitting grows with the learning rate only by chance; 1 if overfitting is more closely
    related to a searched regulariser."""
    p_for_training_fit: float
    """p-value of the hypothesis that overfitting grows with the fit of the training data only by chance."""


class CurveBestIsRegularisedByAccident(Rule):
    """The best trial wins because its low learning rate hampers training, while trials that train better overfit.

    ## What it looks at
    The rule reads the validation and training curves of the feasible trials, ordered by learning rate. Trials at a higher
    learning rate than that of the best trial are left out if they fit the training data no better than the best trial does. The
    rule fires if all of the following conditions hold:

    - the learning rate of the best trial is among the lowest, and the best trial does not overfit,
    - most of the trials at higher rates overfit,
    - overfitting grows with the learning rate and with the fit of the training data,
    - no searched regulariser is as closely related to overfitting as the learning rate is.

    ## Why it matters
    Anything that hampers training also regularises. A study without a proper regulariser prefers hampered trials, so a learning
    rate that is too low looks like the best one. Searching even lower learning rates would hamper training further and fit all
    other hyperparameters to hampered training.

    ## What to do
    Search a regulariser (dropout, weight decay, label smoothing) over the same learning rates. Keep the range of the learning
    rate until the regulariser is tuned, and judge the range again afterwards.

    ## How sure
    Rank correlations (exact for up to 8 trials) test whether overfitting grows with the learning rate and with the training
    fit. Confidence is 1 minus the larger of the two p-values, for the learning rate and for the training fit. In simulations
    (150 studies of 5 to 32 trials for each case), the rule never fired if nothing overfitted or if overfitting depended on a
    regulariser. The rule fired in at most 1.3 % of simulated studies if overfitting was unrelated to the learning rate, and in
    at most 5 % if all trials overfitted alike. If overfitting grew with the learning rate and the lowest rates won, the rule
    fired in 15 % of simulated studies with 5 trials, 39 % with 8, 83 % with 16 and 94 % with 32.
    """

    playbook = "Examining the training curves"
    goal = "boundary"
    needs_order = True
    explains = (
        Relation(
            rules=("space-boundary",),
            shares="end",
            because="The low learning rate is best only because it replaces a regulariser.",
        ),
        Relation(rules=("curve-overfitting",), because="The best trial wins only because the other trials overfit."),
    )

    low: Share = 1 / 3
    """Maximum rank at which the best trial's learning rate counts as low, as a share of the number of trials. Our choice."""
    most: Share = 0.5
    """Minimum share of overfitting trials among the trials with a higher learning rate than the best trial. Our choice."""
    material: Share = 0.02
    """Minimum rise of the validation curve, as a share of the curve's range; `curve-overfitting` uses the same limit."""
    false_alarms: Share = 0.05
    """Maximum share of studies in which chance alone raises a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        trials = study.ranked()
        if not any(len(study.train_cost_curve(t)) for t in trials):
            has_evaluations = sum(len(study.cost_curve(t)) >= _MIN_EVALUATIONS for t in trials) >= _MIN_TRIALS
            evaluate_too = "" if has_evaluations else f"; also evaluate {_MIN_TRIALS} trials {_MIN_EVALUATIONS} times each"
            reason = f"no trial with a result logged a metric of its training data; log the training loss{evaluate_too}"
            raise MissingData(reason, needs="train_loss" if has_evaluations else "other")
        by_rate = _measure_overfit_by_rate(study, trials, self.material)
        if by_rate is None:
            reason = (
                f"the rule needs {_MIN_TRIALS} trials with a learning rate and {_MIN_EVALUATIONS} evaluations each, and 3 "
                "different learning rates"
            )
            raise MissingData(reason, needs="trials", at_least=_MIN_TRIALS)
        best = next(i for i, r in enumerate(by_rate.overfits) if r.trial.index == trials[0].index)
        if by_rate.overfits[best].p_value <= self.false_alarms:
            return
        higher = [r for r, rate in zip(by_rate.overfits, by_rate.rates, strict=True) if rate > by_rate.rates[best]]
        overfit = significant_overfits(higher, self.false_alarms)
        is_low = float(np.mean(by_rate.rates <= by_rate.rates[best])) <= self.low
        p = max(by_rate.p_for_rate, by_rate.p_for_training_fit)
        if is_low and len(overfit) >= self.most * len(higher) > 0 and p <= self.false_alarms:
            yield self._build_finding(study, by_rate, best, overfit, len(higher))

    def _build_finding(self, study: Study, by_rate: _OverfitByRate, index: int, overfit: list[Overfit], higher: int) -> Finding:
        best, rate, metric = by_rate.overfits[index].trial, Name(by_rate.name), study.spec.objective.metric
        training, shown, trial = overfit[0].falling_training_metric, overfit[:4], Name(by_rate.overfits[index].trial.name)
        changes = tuple(regulariser_changes(study, study.cost_curve))
        action = "Try {regularisers} before you settle on such a low {rate}."
        later_advice = f"Look at {rate} again after tuning a regulariser, because a low learning rate regularises by itself."
        caption = say("{trial} does not overfit; trials at higher rates do.", trial=trial)
        marks = [Mark(trial=o.trial.id, step=o.best_step, label="best level") for o in shown]
        axis_caption = say("Trials at a higher {rate} overfit.", rate=rate)
        text = (
            "The best trial, {trial}, wins because its low {rate}, {value}, hampers training. {n} of the {higher} trials that "
            "train better at a higher {rate} overfit."
        )
        return self.finding(
            say(text, trial=trial, rate=rate, value=Setting(float(by_rate.rates[index])), n=len(overfit), higher=higher),
            action=say(action, regularisers=regulariser_phrase(changes), rate=rate),
            severity="warning",
            confidence=1 - max(by_rate.p_for_rate, by_rate.p_for_training_fit),
            subject=by_rate.name,
            side="low",
            trials=[best, *(o.trial for o in overfit)],
            evidence=(
                curve_plot([metric, training] if training else metric, caption, [best, *(o.trial for o in shown)], marks=marks),
                AxisEvidence(parameter=by_rate.name, caption=axis_caption, trials=(best.id,)),
                self._evidence_table(by_rate, index, overfit, higher),
            ),
            changes=(*changes, Advise(text=later_advice)),
        )

    def _evidence_table(self, by_rate: _OverfitByRate, index: int, overfit: list[Overfit], n_higher: int) -> FigureEvidence:
        level_of = {r.trial.index: level for r, level in zip(by_rate.overfits, by_rate.train_costs, strict=True)}
        median_cost = float(np.median([level_of[o.trial.index] for o in overfit]))
        text = "{own} in the best trial, {theirs} in trials that overfit"
        costs = say(text, own=Objective(float(by_rate.train_costs[index])), theirs=Objective(median_cost))
        return table(
            ("trials judged", say("{n}; {higher} at higher rates than the best trial", n=len(by_rate.rates), higher=n_higher)),
            ("training cost at the end of training", costs),
            ("p-value of overfitting growing with the learning rate", Probability(by_rate.p_for_rate)),
            ("p-value of overfitting growing with the training fit", Probability(by_rate.p_for_training_fit)),
            ("maximum of both p-values", Number(self.false_alarms)),
        )


def _measure_overfit_by_rate(study: Study, trials: list[Trial], material: float) -> _OverfitByRate | None:
    """Measure the overfitting of the feasible trials, which are passed best first; None if there are too few trials or if no
    learning rate is searched. `material` is the minimum rise of a validation curve, as a share of its range."""
    searched_rates = searched_learning_rates(study)
    if searched_rates is None:
        return None
    name, rates = searched_rates
    metric, rows = study.spec.objective.metric, []
    for overfit in measure_overfitting_of_trials(study, trials, metric, study.cost_curve, material=material):
        training, index = study.train_cost_curve(overfit.trial).finite.values, overfit.trial.index
        if len(training) and np.isfinite(rates[index]):
            end = float(np.median(training[-max(len(training) // 10, 1) :]))
            rows.append((float(rates[index]), index, overfit, end))
    best = next((row for row in rows if row[1] == trials[0].index), None)
    if best is None or len(rows) < _MIN_TRIALS or len({row[0] for row in rows}) < 3:
        return None
    rows = sorted((row for row in rows if row[0] <= best[0] or row[3] < best[3]), key=lambda row: row[:2])
    overfits, costs = tuple(row[2] for row in rows), np.array([row[3] for row in rows])
    rises = np.array([max(r.rise.height, 0.0) if r.p_value < 1 else 0.0 for r in overfits])
    trial_rates = np.array([row[0] for row in rows])
    p_rate = rank_correlation_p(trial_rates, rises, "greater")
    for other in (n for n in study.searched if n != name and is_regulariser(n)):
        strengths = study.positions(other, [r.trial for r in overfits])
        if np.isfinite(strengths).all() and rank_correlation_p(strengths, rises, "less") <= p_rate:
            p_rate = 1.0
    return _OverfitByRate(name, trial_rates, overfits, costs, p_rate, rank_correlation_p(costs, rises, "less"))


def rank_correlation_p(a: FloatArray, b: FloatArray, alternative: Literal["greater", "less"]) -> float:
    ranks_a, ranks_b = stats.rankdata(a), stats.rankdata(b)
    if np.ptp(ranks_a) == 0 or np.ptp(ranks_b) == 0:
        return 1.0
    if len(a) > _MAX_EXACT_TEST_TRIALS:
        return float(stats.spearmanr(a, b, alternative=alternative).pvalue)
    sign = 1.0 if alternative == "greater" else -1.0
    orders = np.array(list(permutations(ranks_b)))
    return float(np.mean(sign * (orders @ ranks_a) >= sign * float(ranks_a @ ranks_b) - 1e-9))
