"""Implements the rule `step-position`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from advisor.computed.curves import curve_tails
from advisor.computed.curves.overfit import measure_overfitting_of_trials
from advisor.computed.decision import repeats
from advisor.computed.space import settings
from advisor.engine.rule import Count, Factor, Rule, Share
from advisor.model.change import Advise, Change, change_training_length
from advisor.model.evidence import Evidence
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Message, Number, Percent, Probability, say
from advisor.model.space import round_up_steps
from advisor.model.study import Study, Trial
from advisor.stats import ratios
from advisor_rules.steps import _best_steps
from advisor_rules.steps._best_steps import BestStep, LateTrials


class StepPosition(Rule):
    """The best steps of the good trials all lie early in training, or consistently near the end of training.

    ## What it looks at
    The rule examines the step with the best objective, as a share of the planned steps, in each of the five best trials that
    achieved at least half of the best trial's improvement during training. The rule tests if more best steps lie in the first
    tenth, or in the last quarter, of training than expected by chance. The rule also tests if all best steps lie before a point
    in the first half, and if most of the examined trials overfit. If a curve is flat within its noise, the best step is equally
    likely anywhere on the flat part. Trials with fewer than 6 evaluations are left out. If trials stop early when they no
    longer improve, the position of the best step depends on the patience of early stopping, and the rule cannot judge.

    ## Why it matters
    If the best step is always in the first tenth, most of the compute is wasted. If the best step is consistently in the last
    quarter, the trials possibly ended too early. If the learning rate decays to near zero, the last step is usually the best,
    so a late best step is then no reason for a finding.

    ## What to do
    If the best steps lie in the first tenth, train for a fraction of the steps. If the first evaluation is the best, training
    does not work yet and must be fixed first. If the best steps lie in the first half, train for 1.5 times the latest best step
    of the better half of the trials. The finding about the first half is a note, because keeping the best checkpoint gives the
    same result, only in more time.

    If the best steps lie in the last quarter, train longer and tune the decay again, provided that most of the good trials
    still improve. The forecast of `curve-still-improving` shows if trials still improve; it needs a constant learning rate over
    many steps. If `curve-still-improving` fires too, that rule proposes the number of steps. If most trials no longer improve,
    the finding is a note and proposes no other number of steps.

    ## How sure
    Confidence is one minus the p-value of an exact test (Poisson binomial), times the share of best steps in the early or late
    part of the training; the confidence of a note is at most 0.95. The rule needs at least 3 good trials to judge late best
    steps, and 2 to judge early ones. If best steps had no pattern, the rule fired in at most 5 % of simulated studies. In 1,200
    healthy studies with a cosine decay to zero, every finding was a note; if the learning rate was logged, the rule never
    fired.
    """

    playbook = "Deciding how long to train when training is not compute-bound"
    goal = "steps"
    needs_learning = True
    compares_results = True

    best: Count = 5
    """Maximum number of best trials to examine; at least 3 are needed to show late best steps at the 5 % level."""
    reach: Share = 0.5
    """Maximum difference in the objective between a good trial and the best trial, as a share of the best trial's improvement
    during training."""
    early: Share = 0.1
    """Length of the first part of training in which all best steps must lie, as a share of the steps; from the playbook."""
    late: Share = 0.25
    """Length of the last part of training, in which a best step counts as late, as a share of the steps; from the playbook."""
    evaluations: Count = 6
    """Minimum number of evaluated steps of a trial; with fewer steps, each part of the training contains only one or two
    evaluations. Our choice."""
    consistent: Share = 0.75
    """Minimum share of good trials with a late best step for a finding."""
    material: Share = curve_tails.MIN_WORTHWHILE_GAIN
    """Minimum improvement that the forecast must promise for twice the steps, as a share of the trial's whole improvement, to
    justify longer training; the same limit as in `curve-still-improving`."""
    decayed: Share = curve_tails.DECAYED_LEARNING_RATE_RATIO
    """Maximum final learning rate that counts as decayed to near zero, as a share of its peak. Our choice."""
    room: Factor = 3.0
    """Minimum proposed length if all best steps are early, as a multiple of the latest best step. We chose a rather large
    multiple, because a training that is too short does more harm than one that is too long."""
    saved: Share = 0.25
    """Minimum share of the steps that a shorter training saves if the best steps lie in the first half. Our choice."""
    stopped: Share = 0.2
    """Maximum share of trials that stopped early; with more of them, the rule cannot judge. Our choice."""
    half: Share = 0.5
    """Maximum share of the steps by which all best trials must have reached their best step. Our choice."""
    spare: Factor = 1.5
    """Proposed length if all best steps lie in the first half, as a multiple of the latest best step of the better half of the
    trials. Our choice."""
    false_alarms: Share = 0.05
    """Maximum probability, per study, that chance alone raises a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        stopped, ended = sum(t.status == "early_stopped" for t in study.trials), int(study.ended.sum())
        if stopped > self.stopped * ended:
            raise MissingData(
                f"{stopped} of {ended} trials stopped early, so their patience sets the distance of the best step from the end; "
                "train to the planned end and choose the best checkpoint afterwards",
                needs="full_length",
            )
        placed = _best_steps.find_best_steps(study, self.best, self.reach, evaluations=self.evaluations)
        if len(placed) < 2:
            raise MissingData(
                f"{len(placed)} of the best trials ran to their end with {study.spec.objective.metric} at {self.evaluations} "
                "steps or more; the rule needs 2 (early) or 3 (late): run more trials, or evaluate more often",
                needs="evaluations",
                at_least=self.evaluations,
            )
        late_bests = [p for p in placed if p.best_position > 1 - self.late]
        last = max(p.best_position for p in placed)
        p_late = ratios.chance_of_at_least(len(late_bests), np.array([p.chance_of_late_best(self.late) for p in placed]))
        if last <= self.early and self.early ** len(placed) <= self.false_alarms:
            yield self._report_early_best(study, placed, self.early ** len(placed))
        elif last <= self.half and last ** len(placed) <= self.false_alarms and self._most_trials_overfit(study, placed):
            settings.require_unpruned(study)
            if (steps := self._sufficient_training_steps(study, placed)) is not None:
                yield self._report_steps_after_best(study, placed, steps)
        elif len(late_bests) >= self.consistent * len(placed) and p_late <= self.false_alarms:
            limits = {"decayed": self.decayed, "material": self.material, "alpha": self.false_alarms}
            trials = _best_steps.find_late_best_trials(study, placed, self.late, **limits)
            if trials.recommended_steps or not trials.decayed:  # Otherwise, the schedule explains the late best steps.
                yield self._report_late_best(study, placed, trials, p_late)

    def _report_early_best(self, study: Study, placed: Sequence[BestStep], p: float) -> Finding:
        last, first_is_best = max(b.best_position for b in placed), all(b.is_first_evaluation for b in placed)
        action, change = _advise_fixing_training() if first_is_best else self._advise_shorter_training(study, placed, last)
        early_share = Percent(self.early)
        return self.finding(
            say(
                "The best step lies in the first {early} of training in {trials}, at or before {last} of the steps.{unlearned}",
                early=early_share,
                trials="both best trials" if len(placed) == 2 else say("all {n} best trials", n=len(placed)),
                last=Percent(last, 1),
                unlearned=" Their first evaluation is their best, so training improved nothing." if first_is_best else "",
            ),
            action=action,
            severity="warning",
            confidence=1 - p,
            side="low",
            trials=[b.trial for b in placed],
            evidence=self._build_evidence(
                placed,
                p,
                say("Every one of the best trials is at its best in the first {early} of training.", early=early_share),
            ),
            changes=(change,),
        )

    def _advise_shorter_training(self, study: Study, placed: Sequence[BestStep], last: float) -> tuple[Message, Change]:
        """Return (action, change) for a shorter training. `last` is the largest position of a best step."""
        steps = round(np.median([b.steps for b in placed]))
        fewer = min(round_up_steps(max(self.room * last * steps, _latest_best_step(study))), steps)
        action = say(
            "Train for {fewer} instead of {steps}, and regularise if validation gets worse later.",
            fewer=study.length(fewer),
            steps=steps,
        )
        why = (
            f"No best trial is at its best after {last:.1%} of {study.length(steps)}; the new length is at least "
            f"{self.room:g} times that, and none of the better half of the trials is at its best later"
        )
        return action, change_training_length(study, fewer, why=why)

    def _most_trials_overfit(self, study: Study, placed: Sequence[BestStep]) -> bool:
        """Return True if most of the trials overfit: their objective ends worse by more than noise, while the training metric
        does not get worse."""
        metric, trials = study.spec.objective.metric, [b.trial for b in placed]
        overfits = measure_overfitting_of_trials(
            study, trials, metric, study.cost_curve, material=curve_tails.MIN_WORTHWHILE_GAIN
        )
        return 2 * sum(o.p_value <= self.false_alarms for o in overfits) > len(placed)

    def _sufficient_training_steps(self, study: Study, placed: Sequence[BestStep]) -> int | None:
        """Return a shorter length that suffices for the better half of the trials; None if hardly any steps are saved."""
        fewer = round_up_steps(self.spare * _latest_best_step(study))
        return fewer if fewer <= (1 - self.saved) * np.median([b.steps for b in placed]) else None

    def _report_steps_after_best(self, study: Study, placed: Sequence[BestStep], fewer: int) -> Finding:
        steps, last = round(np.median([b.steps for b in placed])), Percent(max(b.best_position for b in placed))
        why = (
            f"{study.length(fewer)} are {self.spare:g} times the latest best step of the better half of the trials, and none of "
            f"the best trials improves after {last} of {steps:,}"
        )
        p = last.value ** len(placed)
        return self.finding(
            say(
                "None of the {n} best trials improves after {last} of {steps}.",
                n=len(placed),
                last=last,
                steps=study.length(steps),
            ),
            action=say("Shorten the training from {steps} to {fewer}.", steps=steps, fewer=study.length(fewer)),
            severity="note",
            confidence=1 - p,
            side="low",
            trials=[b.trial for b in placed],
            evidence=self._build_evidence(
                placed, p, say("All best trials are at their best by {last} of training.", last=last)
            ),
            changes=(change_training_length(study, fewer, why=why),),
        )

    def _report_late_best(self, study: Study, placed: Sequence[BestStep], late: LateTrials, p: float) -> Finding:
        many, of, share = len(late.steps), len(placed), Percent(self.late)
        where = say("in the last {share} of training in {many} of the {of} best trials", share=share, many=many, of=of)
        change: Change
        if late.recommended_steps:
            steps = round(np.median([b.steps for b in late.steps]))
            action = say(
                "Train for {longer} instead of {steps}, and tune the decay of the learning rate again.",
                longer=study.length(late.recommended_steps),
                steps=steps,
            )
            why = f"The best step lies {where}, and {late.improving_count} of these trials still improve when they end."
            change = change_training_length(study, late.recommended_steps, why=why)
        else:
            shape = "flat" if late.gain <= self.material else "open" if np.isfinite(late.rates).any() else "unknown"
            which = "setting" if len({repeats.key(b.trial) for b in placed}) == 1 else "two best settings"
            action = say(_LATE_BEST_ADVICE["improving" if late.is_length_already_advised else shape].format(settings=which))
            change = Advise(text=str(action))
        confidence = (1 - p) * many / of
        return self.finding(
            say(
                "The best step lies {where} (median {median}). The last {part} of training brought {gain} of the gain.",
                where=where,
                median=Percent(float(np.median([b.best_position for b in placed]))),
                part=Percent(late.last_part_length),
                gain=Percent(late.gain, 1),
            ),
            action=action,
            severity="warning" if late.recommended_steps else "note",
            confidence=confidence if late.recommended_steps else min(confidence, 1 - self.false_alarms),
            side="high",
            trials=[b.trial for b in late.steps],
            evidence=self._build_evidence(
                placed, p, say("In {many} of {of} best trials, the best step is late.", many=many, of=of), late.evidence_rows
            ),
            changes=(change,),
        )

    def _build_evidence(
        self, placed: Sequence[BestStep], p: float, caption: Message, rows: Sequence[tuple[str, Message]] = ()
    ) -> tuple[Evidence, ...]:
        limits = say(
            "p ≤ {p}; all trials early, or at least {share} of them late",
            p=Number(self.false_alarms),
            share=Percent(self.consistent),
        )
        lines = {f"first {self.early:.0%}": self.early, f"last {self.late:.0%}": 1 - self.late}
        test = (("p-value of as many best steps in that part (exact)", Probability(p)), ("thresholds", limits))
        return _best_steps.best_step_evidence(placed, caption, lines, (*test, *rows))


def _advise_fixing_training() -> tuple[Message, Change]:
    """Return (action, change) for trials whose training improves nothing."""
    action = say("Fix training before choosing its length: search lower learning rates and check the pipeline.")
    return action, Advise(text=str(action))


def _latest_best_step(study: Study) -> float:
    """Return the latest best step among the better half of the trials."""
    ranked = study.ranked()
    return max(_step_of_lowest_cost(study, t) for t in ranked[: (len(ranked) + 1) // 2])


def _step_of_lowest_cost(study: Study, trial: Trial) -> float:
    curve = study.cost_curve(trial).finite
    return float(curve.steps[int(np.argmin(curve.values))])


_LATE_BEST_ADVICE = {
    "improving": "Choose the training length by the final part of the curves, which still improve.",
    "flat": "Do not train longer: the last part of the training brought almost nothing.",
    "open": "Decay the learning rate to zero before you train longer: the decay may bring the same gain in the same steps.",
    "unknown": "Train the {settings} with the same schedule at half the length: the results show if the length matters.",
}
"""Advice for late best steps if the number of steps should stay the same, keyed by the reason why it should."""
