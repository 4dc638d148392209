"""The rule `steps-compute-bound`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from advisor.computed.curves import curve_tails
from advisor.engine.rule import Count, Rule, Share
from advisor.model.change import Advise, RunPlan
from advisor.model.evidence import CurveEvidence, FigureEvidence
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.message import Message, Percent, joined, say
from advisor.model.study import Study
from advisor.model.words import trimmed

_ROUNDS = (
    "Tune with short runs and make the final runs longer. Runs of about a tenth of the final length answer most questions; then "
    "train a few of the best settings for as long as you can afford.",
    "Keep warmup and initialisation from the short runs. Check the architecture, the optimizer's hyperparameters and the "
    "regularisation again, and tune the learning-rate schedule anew for the long runs.",
)
_LONG_RUNS = RunPlan(plan="rounds", why="Training is limited by compute: very few long runs follow the short ones")
_SUFFICIENT = (
    "Fix one max_train_steps for all trials, enough to reach their best step and not many more. Change it between studies, never "
    "within one.",
    "Spend compute on more trials instead of longer ones, and on regularisation if the training data are fitted perfectly.",
    "Look at the number of steps again after you change regularisation, augmentation or the model: a harder fit or noisier "
    "gradients need more steps.",
)


class StepsComputeBound(Rule):
    """The best trials together show if compute limits this workload, and so which plan for the training length applies.

    ## What it looks at
    The end of the best few trials' stretch at a constant learning rate, as in `curve-still-improving`. *Compute-bound*: in most of
    them the objective still improves (by the test of `curve-still-improving`), and so does the cost on the training data, if
    logged, which is not yet a perfect fit. *Not compute-bound*: in most of them the objective is flat (by the test of
    `curve-saturated`), and the cost on the training data is flat or near its minimum. If neither holds, the rule is quiet.

    ## Why it matters
    The two cases need different plans. If compute is the limit, longer is better, and tuning uses shorter runs than the final one.
    Otherwise, a fixed and sufficient number of steps makes tuning easier, and more trials help more.

    ## What to do
    Compute-bound: choose with short runs, then finish with a few long ones, and tune the schedule again for those. The advisor
    writes the long round if the study gives its length (`final_train_steps`). Not compute-bound: use one sufficient
    `max_train_steps` for all trials, refined by the position of the best steps (`step-position`).

    ## How sure
    Confidence is the share of the best trials that agree, times the probability that their forecasts exceed the threshold
    (compute-bound) or 0.95 (not compute-bound). Of simulated studies with flat curves, at most 3 % were called compute-bound. Of
    those whose curves fall to the end, at most 0.5 % were called not compute-bound.
    """

    playbook: ClassVar[str] = "Determining the number of steps for each training run"
    goal: ClassVar[Goal] = "steps"

    best: Count = 3
    """Maximum number of best trials to examine."""
    reach: Share = 0.1
    """Maximum distance of an examined trial from the best, as a share of the best trial's gain over its run."""
    material: Share = 0.01
    """Minimum forecast gain of a curve that still improves, as a share of the run's gain."""
    rest: Share = 0.05
    """Maximum 95 % bound of the gain of a flat part, as a share of the run's gain; twice as much on training data."""
    saved: Share = 0.25
    """Minimum share of the steps that a flat curve did not need."""
    floor: Share = 0.01
    """Maximum remaining share of the way to a perfect score on the training data that counts as a perfect fit."""
    false_alarms: Share = 0.05
    """Level of each trial's test; most trials must pass it."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield the verdict on the study; nothing if the trials do not agree."""
        judged = curve_tails.best_endings(study, self.best, self.reach)
        improving = [e for e in judged if self._improves(e)]
        flat = [e for e in judged if self._is_flat(e)]
        if 2 * len(improving) > len(judged):
            confidence = sum(e.end.chance_above(self.material) for e in improving) / len(judged)
            what = say(
                "still {improve} at {place}{training}",
                improve="improves" if len(improving) == 1 else "improve",
                place=study.at(improving[0].until),
                training=", on training data too" if any(e.train_end for e in improving) else "",
            )
            yield self._verdict(study, True, what, judged, improving, confidence)
        elif 2 * len(flat) > len(judged):
            if curve_tails.on_one_plateau(study, flat):
                level = study.objective_value(float(study.costs[flat[0].trial.index]))
                raise MissingData(
                    f"different settings stop at the same {study.spec.objective.metric}, {trimmed(level, 4)}, at once: if they are "
                    "stuck on a plateau, it cannot be told whether compute is the limit; this needs trials that train"
                )
            fitted = sum(e.train_left <= self.floor for e in flat)
            what = say(
                "{are} flat from {share} of the steps on{training}",
                are="is" if len(flat) == 1 else "are",
                share=Percent(max(e.plateau.settled * e.until / e.steps for e in flat)),
                training=say(", and {fitted} of them fit the training data nearly perfectly", fitted=fitted)
                if fitted
                else "",
            )
            yield self._verdict(study, False, what, judged, flat, 0.95 * len(flat) / len(judged))

    def _improves(self, ending: curve_tails.Ending) -> bool:
        train = ending.train_end is None or ending.train_end.improving(self.material, self.false_alarms)
        return train and not ending.train_left <= self.floor and ending.end.improving(self.material, self.false_alarms)

    def _is_flat(self, ending: curve_tails.Ending) -> bool:
        return ending.saturated(
            rest=self.rest, saved=self.saved, material=self.material, alpha=self.false_alarms, floor=self.floor
        )

    def _verdict(
        self,
        study: Study,
        bound: bool,
        what: Message,
        judged: Sequence[curve_tails.Ending],
        agreeing: Sequence[curve_tails.Ending],
        confidence: float,
    ) -> Finding:
        """`bound`: True if training is compute-bound; `what`: predicate about the agreeing trials."""
        many, of = len(agreeing), len(judged)
        trials = say("{many} of the best {of} trials", many=many, of=of) if of > 1 else "the best trial"
        advice = _ROUNDS if bound else _SUFFICIENT
        # Until the study states the final length, the plan asks for it; more about long runs would be too early.
        notes = advice if not bound or study.spec.final_train_steps else ()
        limits = say(
            "forecast {forecast}, flat part {rest}, perfect fit {floor}",
            forecast=Percent(self.material),
            rest=Percent(self.rest),
            floor=Percent(self.floor),
        )
        return self.finding(
            say(
                "Training is {bound}: {trials} {what}.",
                bound="compute-bound" if bound else "not compute-bound",
                trials=trials,
                what=what,
            ),
            action=advice[0],
            severity="note",
            confidence=confidence,
            trials=[e.trial for e in agreeing],
            evidence=(
                CurveEvidence(
                    metrics=(study.spec.objective.metric,),
                    caption=say(
                        "{many} of {of} best trials {end} at their end.",
                        many=many,
                        of=of,
                        end="still improve" if bound else "are flat",
                    ),
                    trials=tuple(e.trial.id for e in agreeing),
                ),
                FigureEvidence(
                    rows=(
                        ("forecast for as many steps again", joined(Percent(e.end.forecast, 1) for e in judged)),
                        (
                            "flat from, share of the steps",
                            joined(Percent(e.plateau.settled * e.until / e.steps) for e in judged),
                        ),
                        ("distance from a perfect fit", joined(Percent(e.train_left, 1) for e in judged)),
                        ("thresholds", limits),
                    )
                ),
            ),
            changes=(*([_LONG_RUNS] if bound else []), *(Advise(text=text) for text in notes)),
        )
