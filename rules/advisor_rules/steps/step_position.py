from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.computed.curves import curve_tails
from advisor.computed.curves.good_trials import good_trials
from advisor.computed.curves.overfit import measure_overfitting_of_trials
from advisor.computed.decision import repeats
from advisor.computed.space import settings
from advisor.computed.steps import schedules
from advisor.engine.rule import Count, Factor, RuleOnGoodTrials, Share
from advisor.model.change import Change, change_training_length
from advisor.model.evidence import Evidence, HistogramEvidence, Line, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Message, MessagePart, Percent, Probability, join_items, say
from advisor.model.space import round_up_steps
from advisor.model.study import Study, Trial
from advisor.stats import estimates, trend
from advisor.stats.curve import gain_share_after


class StepPosition(RuleOnGoodTrials):
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
        n_stopped, n_ended = sum(t.status == "early_stopped" for t in study.trials), int(study.ended.sum())
        if n_stopped > self.stopped * n_ended:
            raise MissingData(
                f"{n_stopped} of {n_ended} trials stopped early, so the patience of early stopping decides where the "
                "best step lies; train to the planned end and choose the best checkpoint afterwards",
                needs="full_length",
            )
        best_steps = self._find_best_steps(study)
        if len(best_steps) < 2:
            reason = (
                f"{len(best_steps)} of the best trials ran to their end with {study.spec.objective.metric} at {self.evaluations} "
                "steps or more; the rule needs 2 such trials to find early best steps and 3 to find late ones: run more trials, or "
                "evaluate more often"
            )
            raise MissingData(reason, needs="evaluations", at_least=self.evaluations)
        late = [b for b in best_steps if b.best_position > 1 - self.late]
        latest = max(b.best_position for b in best_steps)
        p_late = estimates.chance_of_at_least(len(late), np.array([b.chance_of_late_best(self.late) for b in best_steps]))
        if latest <= self.early and self.early ** len(best_steps) <= self.false_alarms:
            yield self._report_early_best(study, best_steps, self.early ** len(best_steps))
        elif latest <= self.half and latest ** len(best_steps) <= self.false_alarms and self._most_overfit(study, best_steps):
            settings.require_unpruned(study)
            new_steps = round_up_steps(self.spare * _latest_best_step(study))
            if new_steps <= (1 - self.saved) * np.median([b.steps for b in best_steps]):
                yield self._report_steps_after_best(study, best_steps, new_steps)
        elif len(late) >= self.consistent * len(best_steps) and p_late <= self.false_alarms:
            yield from self._report_late_best(study, best_steps, late, p_late)

    def _find_best_steps(self, study: Study) -> list[_BestStep]:
        """Return the best steps of the best good trials, best trial first, except trials with few evaluations and trials that
        were cut short soon after their best step. Raises MissingData if there is no good trial."""
        best_steps = []
        for trial in good_trials(study, self.reach)[: self.best]:
            curve = study.cost_curve(trial).finite
            if len(np.unique(curve.steps)) < self.evaluations:
                continue
            last = int(curve.steps[-1])
            total = max(study.planned_length(trial, last), 1)
            best_position, first_tied_position = trend.best_step_position(curve.steps, curve.values, total=total)
            if not study.cut_short(trial) or best_position * total <= 0.5 * last:
                best_steps.append(_BestStep(trial, total, best_position, first_tied_position))
        return best_steps

    def _report_early_best(self, study: Study, best_steps: Sequence[_BestStep], p: float) -> Finding:
        latest, early = max(b.best_position for b in best_steps), Percent(self.early)
        curves = [study.cost_curve(b.trial).finite.values for b in best_steps]
        is_first_best = all(values[0] == values.min() for values in curves)
        caption = say("Each of the best trials reaches its best result in the first {early} of training.", early=early)
        if is_first_best:
            action = say("Fix training before choosing its length: search lower learning rates and check the pipeline.")
            changes = None
        else:
            steps = round(np.median([b.steps for b in best_steps]))
            new_steps = min(round_up_steps(max(self.room * latest * steps, _latest_best_step(study))), steps)
            text = "Train for {fewer} instead of {steps}, and regularise if validation gets worse later."
            action = say(text, fewer=study.length(new_steps), steps=steps)
            why = (
                f"All best trials reach their best result within {latest:.1%} of {study.length(steps)}; the new length is at "
                f"least {self.room:g} times as long, and the better half of all trials reach their best result within it"
            )
            changes = (change_training_length(study, new_steps, why=why),)
        text = "The best step lies in the first {early} of training in {trials}, at or before {last} of the steps.{unlearned}"
        trials = "both best trials" if len(best_steps) == 2 else say("all {n} best trials", n=len(best_steps))
        unlearned = " Their first evaluation is their best, so training improved nothing." if is_first_best else ""
        return self.finding(
            say(text, early=early, trials=trials, last=Percent(latest, 1), unlearned=unlearned),
            action=action,
            severity="warning",
            confidence=1 - p,
            side="low",
            trials=[b.trial for b in best_steps],
            evidence=self._build_evidence(best_steps, p, caption),
            changes=changes,
        )

    def _most_overfit(self, study: Study, best_steps: Sequence[_BestStep]) -> bool:
        material = curve_tails.MIN_WORTHWHILE_GAIN
        overfits = measure_overfitting_of_trials(
            study, [b.trial for b in best_steps], study.spec.objective.metric, study.cost_curve, material=material
        )
        return 2 * sum(o.p_value <= self.false_alarms for o in overfits) > len(best_steps)

    def _report_steps_after_best(self, study: Study, best_steps: Sequence[_BestStep], new_steps: int) -> Finding:
        steps, latest = (round(np.median([b.steps for b in best_steps])), Percent(max(b.best_position for b in best_steps)))
        why = (
            f"{study.length(new_steps)} are {self.spare:g} times the latest best step of the better half of the trials, and none "
            f"of the best trials improves after {latest} of {steps:,}"
        )
        p, length = latest.value ** len(best_steps), study.length(steps)
        caption = say("All best trials reach their best result within the first {last} of training.", last=latest)
        return self.finding(
            say("None of the {n} best trials improves after {last} of {steps}.", n=len(best_steps), last=latest, steps=length),
            action=say("Shorten the training from {steps} to {fewer}.", steps=steps, fewer=study.length(new_steps)),
            severity="note",
            confidence=1 - p,
            side="low",
            trials=[b.trial for b in best_steps],
            evidence=self._build_evidence(best_steps, p, caption),
            changes=(change_training_length(study, new_steps, why=why),),
        )

    def _report_late_best(
        self, study: Study, best_steps: Sequence[_BestStep], late: Sequence[_BestStep], p: float
    ) -> Iterator[Finding]:
        endings = [curve_tails.curve_end_before_decay(study, b.trial) for b in late]
        rates = [schedules.final_rate_share(study, b.trial) for b in late]
        improving = [e for e in endings if e is not None and e.is_improving(self.material, self.false_alarms)]
        advised_elsewhere = curve_tails.needs_longer_training(study, self.false_alarms)
        train_longer = 2 * len(improving) > len(best_steps) and not advised_elsewhere
        has_decayed = [
            rate < self.decayed
            if np.isfinite(rate)
            else schedules.read_schedule(study, b.trial).logged_kind in _SCHEDULES_TO_ZERO
            for b, rate in zip(late, rates, strict=True)
        ]
        if not train_longer and 2 * sum(has_decayed) > len(late):
            return
        gain, part = (float(np.median(x)) for x in zip(*(self._gain_in_last_part(study, b) for b in late), strict=True))
        n_late, n_trials, share = len(late), len(best_steps), Percent(self.late)
        where = say("in the last {share} of training in {many} of the {of} best trials", share=share, many=n_late, of=n_trials)
        if train_longer:
            action, changes = _advise_longer_training(study, late, improving, where)
        else:
            shape = "flat" if gain <= self.material else "open" if np.isfinite(rates).any() else "unknown"
            which = "setting" if len({repeats.key(b.trial) for b in best_steps}) == 1 else "two best settings"
            action = say(_LATE_BEST_ADVICE["improving" if advised_elsewhere else shape].format(settings=which))
            changes = None
        median = Percent(float(np.median([b.best_position for b in best_steps])))
        text = "The best step lies {where} (median {median}). The last {part} of training brought {gain} of the total gain."
        caption = say("In {many} of {of} best trials, the best step is late.", many=n_late, of=n_trials)
        yield self.finding(
            say(text, where=where, median=median, part=Percent(part), gain=Percent(gain, 1)),
            action=action,
            severity="warning" if train_longer else "note",
            confidence=min((1 - p) * n_late / n_trials, 1 if train_longer else 1 - self.false_alarms),
            side="high",
            trials=[b.trial for b in late],
            evidence=self._build_evidence(best_steps, p, caption, _forecast_rows(endings, rates)),
            changes=changes,
        )

    def _gain_in_last_part(self, study: Study, best_step: _BestStep) -> tuple[float, float]:
        """Return (share of the trial's improvement, share of its steps) of the last part of training, which starts at an
        evaluation and may therefore be longer than `late`."""
        curve = study.cost_curve(best_step.trial).finite
        late_start = (1 - self.late) * best_step.steps
        start = int(max(curve.steps[curve.steps <= late_start], default=0))
        return gain_share_after(curve.steps, curve.values, after=late_start), 1 - start / best_step.steps

    def _build_evidence(
        self, best_steps: Sequence[_BestStep], p: float, caption: Message, rows: Sequence[tuple[str, Message]] = ()
    ) -> tuple[Evidence, ...]:
        positions = np.array([b.best_position for b in best_steps])
        counts, edges = np.histogram(positions, bins=20, range=(0, 1))
        low, middle, high = (Percent(float(x), 1) for x in (positions.min(), np.median(positions), positions.max()))
        span = say("{low} to {high}, median {middle}", low=low, high=high, middle=middle)
        text = "p ≤ {p}; all best steps early, or at least {share} of them late"
        return (
            HistogramEvidence(
                quantity="best step, as a share of the planned steps",
                caption=caption,
                edges=tuple(edges.tolist()),
                counts=tuple(counts.tolist()),
                lines=(
                    Line(value=self.early, label=f"first {self.early:.0%}"),
                    Line(value=1 - self.late, label=f"last {self.late:.0%}"),
                ),
            ),
            table(
                ("best trials", len(positions)),
                ("best steps, as a share of the training", span),
                ("exact p-value: chance of as many best steps in this part of training", Probability(p)),
                ("thresholds", say(text, p=self.false_alarms, share=Percent(self.consistent))),
                *rows,
            ),
        )


_LATE_BEST_ADVICE = {
    "improving": "Choose the training length by the final part of the curves, which still improve.",
    "flat": "Do not train longer: the last part of the training brought almost nothing.",
    "open": "Decay the learning rate to zero before you train longer: the decay may bring the same gain in the same steps.",
    "unknown": "Train the {settings} with the same schedule at half the length: the results show if the length matters.",
}
"""Advice for late best steps if the number of steps should stay the same, keyed by the reason why it should."""


_SCHEDULES_TO_ZERO = ("linear", "cosine", "polynomial")
"""Names of schedules that end near zero by default."""


@dataclass(frozen=True, slots=True)
class _BestStep:
    trial: Trial
    steps: int
    """Number of planned steps of the trial or, if unknown, number of steps that the trial ran."""
    best_position: float
    """Position of the trial's best evaluation in the training, as a share of the planned steps."""
    first_tied_position: float
    """Position of the first evaluation that is as good as the best one within noise, as a share of the planned steps."""

    def chance_of_late_best(self, late: float) -> float:
        """Return the probability that the best step lies in the last share `late` of the training if it is equally likely
        anywhere or, if the trial stopped improving in the first half, anywhere on the plateau."""
        return late / (1 - self.first_tied_position) if self.first_tied_position <= 0.5 else late


def _latest_best_step(study: Study) -> float:
    ranked = study.ranked()
    curves = [study.cost_curve(t).finite for t in ranked[: (len(ranked) + 1) // 2]]
    return max(float(c.steps[int(np.argmin(c.values))]) for c in curves)


def _advise_longer_training(
    study: Study, late: Sequence[_BestStep], improving: Sequence[trend.CurveEnd], where: Message
) -> tuple[Message, tuple[Change, ...] | None]:
    median_steps = np.median([b.steps for b in late])
    steps = round_up_steps(median_steps * float(np.median([e.recommended_length_factor for e in improving])))
    text = "Train for {longer} instead of {steps}, and tune the decay of the learning rate again."
    action = say(text, longer=study.length(steps), steps=round(median_steps))
    why = f"The best step lies {where}, and {len(improving)} of these trials still improve when they end."
    return action, (change_training_length(study, steps, why=why),)


def _forecast_rows(endings: Sequence[trend.CurveEnd | None], rates: Sequence[float]) -> tuple[tuple[str, Message], ...]:
    gains: list[MessagePart] = ["unknown" if e is None else Percent(e.forecast_gain, 1) for e in endings]
    final_rates: list[MessagePart] = ["not logged" if np.isnan(r) else Percent(r, 1) for r in rates]
    table_rows = (
        ("forecast gain of twice the steps, as a share of the gain so far", gains),
        ("learning rate at the end, as a share of its peak", final_rates),
    )
    return tuple((label, join_items(x[:1] if len(set(map(str, x))) == 1 else x)) for label, x in table_rows)
