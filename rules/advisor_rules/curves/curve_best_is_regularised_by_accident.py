"""The rule `curve-best-is-regularised-by-accident`; its page is the docstring of the class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from advisor.computed.curves.overfit import Overfit, beyond_chance, regulariser_changes
from advisor.engine.rule import Relation, Rule, Share
from advisor.model.change import AddParameter, Advise
from advisor.model.evidence import AxisEvidence, CurveEvidence, FigureEvidence, Mark
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.study import Study
from advisor_rules.curves._lr_as_regulariser import FEWEST, Crippled, read_crippled


class CurveBestIsRegularisedByAccident(Rule):
    """The best trial wins because its low learning rate hampers training, while trials that train better overfit.

    ## What it looks at
    The validation and the training curves of the feasible trials, in the order of their learning rates; those at a higher rate than
    the best trial's that train no better than it are left out. The rule speaks where the best trial's rate is among the lowest, it
    does not overfit, most of the trials at higher rates do, and overfitting grows with the learning rate and with how well the
    training data are fitted. Where a regulariser is searched that goes with overfitting as closely as the learning rate does, that
    one is what regularises, and the rule is quiet.

    ## Why it matters
    Whatever makes training worse regularises. A study without a proper regulariser prefers such trials, and a learning rate that is
    too low is then taken for the best one: widening its range downwards follows the accident, and all other hyperparameters are
    tuned around it.

    ## What to do
    Search a regulariser (dropout, weight decay, label smoothing) over the same learning rates, then look at the learning rate
    again. Until then its range stays where it is.

    ## How sure
    Both relations are tested by rank correlation over the trials (exact for up to 8), and both must be beyond chance, as must the
    overfitting itself; confidence is 1 minus the larger p-value. 150 simulated studies a design of 5 to 32 trials: where nothing
    overfits none fired, where overfitting has nothing to do with the learning rate 0 to 1.3 %, where a regulariser decides none,
    where all trials overfit alike 0 to 5 %. Where overfitting grows with the rate, and the lowest rates win: 15 % with 5 trials,
    39 % with 8, 83 % with 16, 94 % with 32. The objective is each trial's best value: choosing the best step already spares a study
    much of what overfitting costs, so such winners are rarer than trials that overfit.

    Example: "The best trial trial-2 wins at a learning_rate of 0.0003, among the lowest, which hampers its training: 8 of the 9
    trials that train better at higher rates overfit."
    """

    playbook: ClassVar[str] = "Examining the training curves"
    goal: ClassVar[Goal] = "boundary"
    explains: ClassVar[tuple[Relation, ...]] = (
        Relation(
            rules=("space-boundary",),
            shares="end",
            because="So low a learning rate is best only because it takes the place of a regulariser.",
        ),
        Relation(
            rules=("curve-overfitting",),
            shares="study",
            because="These are the trials that it wins against.",
        ),
    )

    low: Share = 1 / 3
    """The best trial's learning rate counts as low where at most this share of the trials have one as low. Ours."""
    most: Share = 0.5
    """Share of the trials at higher learning rates, at least, that must overfit. Ours."""
    material: Share = 0.02
    """Smallest rise that counts as overfitting, as in `curve-overfitting`."""
    false_alarms: Share = 0.05
    """How often, per study, chance alone may raise a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        """At most one finding, about the learning rate."""
        trials = study.ranked()
        if not any(len(study.train_cost_curve(t)) for t in trials):
            raise MissingData("no feasible trial logged how well it fits its training data; log the training loss")
        read = read_crippled(study, trials, material=self.material)
        if read is None:
            raise MissingData(
                f"it takes {FEWEST} trials with a learning rate each, of 3 values or more, and with 6 evaluations or more"
            )
        at = next(i for i, r in enumerate(read.readings) if r.trial.index == trials[0].index)
        if read.readings[at].p <= self.false_alarms:
            return
        higher = [r for r, rate in zip(read.readings, read.rates, strict=True) if rate > read.rates[at]]
        overfit = beyond_chance(higher, self.false_alarms)
        lowest = float(np.mean(read.rates <= read.rates[at])) <= self.low
        if lowest and len(overfit) >= self.most * len(higher) > 0 and read.p <= self.false_alarms:
            yield self._report(study, read, at, overfit, len(higher))

    def _report(self, study: Study, read: Crippled, at: int, overfit: list[Overfit], higher: int) -> Finding:
        best, objective = read.readings[at].trial, study.spec.objective.metric
        training = overfit[0].training or "the training metric"
        level_of = {r.trial.index: level for r, level in zip(read.readings, read.levels, strict=True)}
        theirs = float(np.median([level_of[o.trial.index] for o in overfit]))
        changes = tuple(regulariser_changes(study))
        names = " and ".join(c.name if isinstance(c, AddParameter) else c.parameter for c in changes)
        look = f"Look at {read.rate} again once a regulariser is tuned: a low one regularises by itself."
        return self.finding(
            f"The best trial {best.name} wins at a {read.rate} of {read.rates[at]:.3g}, among the lowest, which hampers its "
            f"training: {len(overfit)} of the {higher} trials that train better at higher rates overfit.",
            action=f"Search {names or 'another regulariser'} before settling on so low a {read.rate}, then look at it again.",
            severity="warning",
            confidence=1 - read.p,
            subject=read.rate,
            side="low",
            trials=[best, *(o.trial for o in overfit)],
            evidence=(
                CurveEvidence(
                    metrics=(objective, training) if overfit[0].training else (objective,),
                    caption=f"{best.name} does not overfit; trials at higher rates do.",
                    trials=(best.id, *(o.trial.id for o in overfit[:4])),
                    marks=tuple(Mark(trial=o.trial.id, step=o.step, label="best level") for o in overfit[:4]),
                ),
                AxisEvidence(
                    parameter=read.rate,
                    caption=f"Trials at a higher {read.rate} overfit.",
                    trials=(best.id,),
                ),
                FigureEvidence(
                    rows=(
                        ("trials judged", f"{len(read.rates)}, {higher} of them at higher rates than the best one's"),
                        ("training cost at its end", f"{read.levels[at]:.4g}; {theirs:.4g} where trials overfit"),
                        ("overfitting grows with the learning rate", f"p = {read.p_rate:.2g}"),
                        ("overfitting grows with the fit of training data", f"p = {read.p_training:.2g}"),
                        ("limit of both", f"{self.false_alarms:g}"),
                    )
                ),
            ),
            changes=(*changes, Advise(text=look)),
        )
