"""Implements the rule `curve-best-is-regularised-by-accident`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from advisor.computed.curves.overfit import Overfit, regulariser_changes, regulariser_phrase, significant_overfits
from advisor.engine.rule import Relation, Rule, Share
from advisor.model.change import Advise
from advisor.model.evidence import AxisEvidence, CurveEvidence, FigureEvidence, Mark, curve_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Name, Number, Objective, Probability, Setting, say
from advisor.model.study import Study, Trial
from advisor_rules.curves._lr_as_regulariser import MIN_EVALUATIONS, MIN_TRIALS, OverfitByLearningRate, measure_overfit_by_rate


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
    compares_results = True
    needs_order = True
    explains = (
        Relation(
            rules=("space-boundary",),
            shares="end",
            because="The low learning rate is best only because it replaces a regulariser.",
        ),
        Relation(
            rules=("curve-overfitting",), shares="study", because="The best trial wins only because the other trials overfit."
        ),
    )

    low: Share = 1 / 3
    """Maximum rank at which the best trial's learning rate counts as low, as a share of the number of trials. Our choice."""
    most: Share = 0.5
    """Minimum share of overfitting trials among those with a higher learning rate than the best trial. Our choice."""
    material: Share = 0.02
    """Minimum rise of the validation curve, as a share of the curve's range; `curve-overfitting` uses the same limit."""
    false_alarms: Share = 0.05
    """Maximum share of studies in which chance alone raises a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        trials = study.ranked()
        if not any(len(study.train_cost_curve(t)) for t in trials):
            evaluated = sum(len(study.cost_curve(t)) >= MIN_EVALUATIONS for t in trials) >= MIN_TRIALS
            also = "" if evaluated else f"; also evaluate {MIN_TRIALS} trials {MIN_EVALUATIONS} times each"
            raise MissingData(
                f"no trial with a result logged a metric of its training data; log the training loss{also}",
                needs="train_loss" if evaluated else "other",
            )
        read = measure_overfit_by_rate(study, trials, material=self.material)
        if read is None:
            raise MissingData(
                f"the rule needs {MIN_TRIALS} trials with a learning rate and {MIN_EVALUATIONS} evaluations each, and 3 different "
                "learning rates",
                needs="trials",
                at_least=MIN_TRIALS,
            )
        at = next(i for i, r in enumerate(read.overfits) if r.trial.index == trials[0].index)
        if read.overfits[at].p_value <= self.false_alarms:
            return
        higher = [r for r, rate in zip(read.overfits, read.rates, strict=True) if rate > read.rates[at]]
        overfit = significant_overfits(higher, self.false_alarms)
        lowest_share = float(np.mean(read.rates <= read.rates[at])) <= self.low
        if lowest_share and len(overfit) >= self.most * len(higher) > 0 and read.p_value <= self.false_alarms:
            yield self._report_accidental_regularisation(study, read, at, overfit, len(higher))

    def _report_accidental_regularisation(
        self, study: Study, read: OverfitByLearningRate, at: int, overfit: list[Overfit], higher: int
    ) -> Finding:
        best, rate = read.overfits[at].trial, Name(read.rate)
        changes = tuple(regulariser_changes(study, study.cost_curve))
        return self.finding(
            say(
                "The best trial, {trial}, wins because its low {rate}, {value}, hampers training. {n} of the {higher} trials that "
                "train better at a higher {rate} overfit.",
                trial=Name(best.name),
                rate=rate,
                value=Setting(float(read.rates[at])),
                n=len(overfit),
                higher=higher,
            ),
            action=say(
                "Try {regularisers} before you settle on such a low {rate}.",
                regularisers=regulariser_phrase(changes),
                rate=rate,
            ),
            severity="warning",
            confidence=1 - read.p_value,
            subject=read.rate,
            side="low",
            trials=[best, *(o.trial for o in overfit)],
            evidence=(
                _overfitting_curves(study, best, overfit),
                AxisEvidence(
                    parameter=read.rate, caption=say("Trials at a higher {rate} overfit.", rate=rate), trials=(best.id,)
                ),
                self._figures(read, at, overfit, higher),
            ),
            changes=(
                *changes,
                Advise(
                    text=f"Look at {rate} again after tuning a regulariser, because a low learning rate regularises by itself."
                ),
            ),
        )

    def _figures(self, read: OverfitByLearningRate, at: int, overfit: list[Overfit], higher: int) -> FigureEvidence:
        level_of = {r.trial.index: level for r, level in zip(read.overfits, read.levels, strict=True)}
        theirs = float(np.median([level_of[o.trial.index] for o in overfit]))
        levels = say("{own}; {theirs} in trials that overfit", own=Objective(float(read.levels[at])), theirs=Objective(theirs))
        return table(
            ("trials judged", say("{n}; {higher} at a higher rate than the best trial", n=len(read.rates), higher=higher)),
            ("training cost at the end", levels),
            ("p-value, overfitting grows with the learning rate", Probability(read.p_for_learning_rate)),
            ("p-value, overfitting grows with the training fit", Probability(read.p_for_training_fit)),
            ("limit of both", Number(self.false_alarms)),
        )


def _overfitting_curves(study: Study, best: Trial, overfit: list[Overfit]) -> CurveEvidence:
    training = overfit[0].falling_training_metric
    return curve_plot(
        (study.spec.objective.metric, training) if training else (study.spec.objective.metric,),
        say("{trial} does not overfit; trials at higher rates do.", trial=Name(best.name)),
        [best, *(o.trial for o in overfit[:4])],
        marks=tuple(Mark(trial=o.trial.id, step=o.best_step, label="best level") for o in overfit[:4]),
    )
