"""The rule `schedule-ad-hoc`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from advisor.computed.steps import schedules
from advisor.engine.rule import Count, Rule, Share
from advisor.model.change import Advise, SetSchedule
from advisor.model.evidence import CurveEvidence, Evidence, FigureEvidence, Mark
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.study import Study


class ScheduleAdHoc(Rule):
    """The learning rate is lowered as a reaction to a metric that stopped improving, not by a schedule that was fixed before.

    ## What it looks at
    The schedule that the five best trials noted: one that watches a metric, such as reduce on plateau. Where none was noted, their
    logged learning rates: they fall in steps, at different steps in different trials, and each time after the same number of
    evaluations without an improvement. A staircase that was fixed before falls at the same steps in every trial.

    ## Why it matters
    When such a rate falls is decided by the noise of the evaluations, so that two runs of the same settings get two schedules, and
    the schedule of the best one, copied into another training, suits nobody. Automated it is merely hard to compare; done by hand
    it cannot be repeated at all.

    ## What to do
    For studies, and for results that others should repeat, use a fixed schedule: a cosine or a straight line to zero over the
    training. Otherwise write down the rule and its settings, and log the learning rate.

    ## How sure
    A noted schedule is a fact: confidence 0.95 times the share of the good trials that have it. From the curves, the chance that
    falls chosen blindly would so often come after the same wait is exact (Poisson binomial), and confidence is one minus it. Of
    150 simulated studies each none fired, of 2 to 5 trials with staircases at fixed steps, at steps drawn for each trial, and with
    an interval of its own in each; of 20 studies of 4 trials whose rate watched the loss, 18 or more did.

    *Example:* "The learning rate of 5 of the 5 good trials is lowered by a scheduler that watches a metric, so that chance decides
    when it falls."
    """

    playbook: ClassVar[str] = "Why do some papers have complicated learning rate schedules?"
    goal: ClassVar[Goal] = "efficiency"

    best: Count = 5
    """How many of the best trials to look at."""
    reach: Share = 0.5
    """How far behind the best a trial may be to be a good one, as a share of what the best trial gained over its run."""
    agree: Share = 0.8
    """Share of the falls that must come after the same number of evaluations without an improvement. Ours."""
    false_alarms: Share = 0.05
    """How often, per study, fixed schedules may raise a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding about the study."""
        good = schedules.of_good_trials(study, self.reach, self.best)
        if all(s.noted is None and len(s.rates) < schedules.FEWEST for s in good):
            raise MissingData(
                "nothing tells the schedule of the learning rate; log the rate at every step, as train/learning_rate (the "
                "advisor's training hook does)"
            )
        watching = [s for s in good if s.noted == "plateau"]
        if watching and 2 * len(watching) >= len(good):
            said = "lowered by a scheduler that watches a metric, so that chance decides when it falls"
            yield self._finding(study, good, watching, said, 0.95 * len(watching) / len(good), ())
            return
        free = [s for s in good if s.noted is None]
        found = schedules.reaction(study, free)
        if found is None or found.p > self.false_alarms or found.hits < self.agree * found.falls:
            return
        falling = [s for s in free if len(s.falls())]
        wait = (
            f"{found.patience} evaluation{'s' if found.patience > 1 else ''} without an improvement of {found.metric}"
        )
        rows = (("falls that came after this wait", f"{found.hits} of {found.falls}"), ("p-value", f"{found.p:.2g}"))
        yield self._finding(study, good, falling, f"lowered each time after {wait}", 1 - found.p, rows)

    def _finding(
        self,
        study: Study,
        good: list[schedules.Schedule],
        which: list[schedules.Schedule],
        said: str,
        sure: float,
        rows: tuple[tuple[str, str], ...],
    ) -> Finding:
        who = f"{len(which)} of the {len(good)} good trials" if len(good) > 1 else which[0].trial.name
        metric = study.signals.get("learning_rate")
        curves: tuple[Evidence, ...] = ()
        if metric is not None:
            marks = [Mark(trial=s.trial.id, step=int(at), label="lowered") for s in which for at in s.falls()[:4]]
            ids = tuple(s.trial.id for s in which)
            curves = (CurveEvidence(metrics=(metric,), caption=f"Here it is {said}.", trials=ids, marks=tuple(marks)),)
        return self.finding(
            f"The learning rate of {who} is {said}.",
            action="Use a schedule that is fixed before the training, a cosine or a straight line to zero; or write the rule down.",
            severity="note",
            confidence=min(sure, 0.95),
            subject=metric,
            trials=[s.trial for s in which],
            evidence=(
                *curves,
                FigureEvidence(rows=(("noted schedules", ", ".join(s.noted or "none" for s in good)), *rows)),
            ),
            changes=(
                SetSchedule(schedule={"kind": "cosine"}, why=f"The learning rate was {said}."),
                Advise(text="Before you publish results, log the learning rate and make its schedule repeatable."),
            ),
        )
