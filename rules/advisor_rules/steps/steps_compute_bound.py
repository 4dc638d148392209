"""The rule `steps-compute-bound`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from advisor.computed.curves import curve_tails
from advisor.engine.rule import Count, Rule, Share
from advisor.model.change import Advise, RunPlan
from advisor.model.evidence import CurveEvidence, FigureEvidence
from advisor.model.finding import Finding, Goal
from advisor.model.study import Study

_ROUNDS = (
    "Make the final runs longer than these, and tune with short ones: runs of about a tenth of the final length answer most "
    "questions; then train very few of the best settings for as long as you can afford.",
    "Take warmup and initialisation over from the short runs as they are, the architecture with some trust, the optimizer's "
    "hyperparameters and the regularisation with little; tune the learning-rate schedule again for the long runs.",
)
_LONG_RUNS = RunPlan(plan="rounds", why="Training is limited by compute: very few long runs follow the short ones")
_ENOUGH = (
    "Fix one max_train_steps for all trials, as many as they need to reach their best step and not many more; change it between "
    "studies, never within one.",
    "Spend compute on more trials instead of longer ones, and on regularisation where the training data are fitted perfectly.",
)


class StepsComputeBound(Rule):
    """The best trials together show whether compute limits this workload, and so which plan for the training length applies.

    ## What it looks at
    Three things at the end of the best few trials: whether the objective still improves (as `curve-still-improving` tests it),
    whether it is flat (as `curve-saturated` does), and whether the training data are fitted perfectly or their cost is flat too.
    *Compute-bound*: in most of these trials the objective still improves, and so does the cost on the training data where it was
    logged, with room left to a perfect fit. *Not compute-bound*: in most of them the objective is flat, and the cost on the
    training data is flat or near its floor. Anything else is mixed, and the rule keeps quiet.

    ## Why it matters
    The two regimes want different plans. Where compute is the limit, longer is better and tuning must be done on shorter runs than
    the final one; where it is not, a fixed and sufficient number of steps makes tuning easier, and more trials help more.

    ## What to do
    Compute-bound: two rounds, short runs to choose, few long runs to finish; the schedule is tuned again for the long ones. The
    long round is written where the study says how long it is to be (`final_train_steps`). Not
    compute-bound: one sufficient `max_train_steps` for all trials, refined from where the best steps lie (`step-position`).

    ## How sure
    Confidence: the share of the best trials that agree, times the probability that their forecasts exceed the threshold
    (compute-bound) or 0.95, the level of the bounds behind "flat" (not compute-bound). Of 400 simulated studies each it called
    compute-bound at most 1.3 % of those with flat curves and white noise (3 % with a lag-1 correlation of 0.5), and not
    compute-bound 0 to 0.5 % of those whose curves fall to the end (200 studies each).

    *Example:* "Training is compute-bound: of the best 3 trials looked at, 3 still improve at the end, step 10,000, on training
    data too."
    """

    playbook: ClassVar[str] = "Determining the number of steps for each training run"
    goal: ClassVar[Goal] = "steps"

    best: Count = 3
    """How many of the best trials to look at."""
    reach: Share = 0.1
    """How far behind the best a trial may be to count among them, as a share of what the best trial gained over its run."""
    material: Share = 0.01
    """Smallest forecast gain, as a share of what the run gained, with which a curve still improves."""
    rest: Share = 0.05
    """Largest 95 % bound of what a flat part brought, as a share of what the run gained; twice that on training data."""
    saved: Share = 0.25
    """Smallest share of the steps that a flat curve did not need."""
    floor: Share = 0.01
    """Share of the way to a perfect score on the training data below which they are fitted perfectly."""
    false_alarms: Share = 0.05
    """Level of each trial's test; most trials must pass it."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield the verdict on the study, or nothing where the trials do not agree."""
        judged = curve_tails.best_endings(study, self.best, self.reach)
        improving = [e for e in judged if self._compute_bound(e)]
        flat = [e for e in judged if self._enough(e)]
        if 2 * len(improving) > len(judged):
            also = ", on training data too" if any(e.train_end for e in improving) else ""
            sure = sum(e.end.chance_above(self.material) for e in improving) / len(judged)
            what = f"still improve{'s' * (len(improving) == 1)} at the end, {study.at(improving[0].steps)}{also}"
            yield self._verdict(study, "compute-bound", what, judged, improving, sure)
        elif 2 * len(flat) > len(judged):
            fitted = sum(e.train_left <= self.floor for e in flat)
            also = f", {fitted} of them with the training data fitted perfectly" if fitted else ""
            what = f"{'is' if len(flat) == 1 else 'are'} flat from {max(e.plateau.settled for e in flat):.0%} of the steps on{also}"
            yield self._verdict(study, "not compute-bound", what, judged, flat, 0.95 * len(flat) / len(judged))

    def _compute_bound(self, ending: curve_tails.Ending) -> bool:
        train = ending.train_end is None or ending.train_end.improving(self.material, self.false_alarms)
        return train and not ending.train_left <= self.floor and ending.end.improving(self.material, self.false_alarms)

    def _enough(self, ending: curve_tails.Ending) -> bool:
        return ending.saturated(
            rest=self.rest, saved=self.saved, material=self.material, alpha=self.false_alarms, floor=self.floor
        )

    def _verdict(
        self,
        study: Study,
        regime: str,
        what: str,
        judged: Sequence[curve_tails.Ending],
        firing: Sequence[curve_tails.Ending],
        sure: float,
    ) -> Finding:
        bound = regime == "compute-bound"
        who = f"of the best {len(judged)} trials looked at, {len(firing)}" if len(judged) > 1 else "the best trial"
        return self.finding(
            f"Training is {regime}: {who} {what}.",
            action=_ROUNDS[0] if bound else _ENOUGH[0],
            severity="note",
            confidence=sure,
            trials=[e.trial for e in firing],
            evidence=(
                CurveEvidence(
                    metrics=(study.spec.objective.metric,),
                    caption=f"{len(firing)} of {len(judged)} best trials {'still improve' if bound else 'are flat'} at their end.",
                    trials=tuple(e.trial.id for e in firing),
                ),
                FigureEvidence(
                    rows=(
                        ("forecast for as many steps again", ", ".join(f"{e.end.forecast:.1%}" for e in judged)),
                        ("flat from, share of the steps", ", ".join(f"{e.plateau.settled:.0%}" for e in judged)),
                        ("way left to a perfect fit", ", ".join(f"{e.train_left:.1%}" for e in judged)),
                        (
                            "thresholds",
                            f"forecast {self.material:.0%}, flat part {self.rest:.0%}, perfect fit {self.floor:.0%}",
                        ),
                    )
                ),
            ),
            changes=(
                *([_LONG_RUNS] if bound else []),
                *(Advise(text=text) for text in (_ROUNDS if bound else _ENOUGH)),
            ),
        )
