from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from advisor.computed.curves import curve_tails
from advisor.computed.curves.curve_tails import CurveEnding
from advisor.computed.space import settings
from advisor.engine.rule import Count, Factor, Relation, Rule, Share
from advisor.model.change import Advise, Change, change_training_length
from advisor.model.evidence import Evidence, Mark, curve_plot, table
from advisor.model.finding import Finding
from advisor.model.message import Message, Name, Number, Objective, Percent, list_message, say
from advisor.model.space import round_up_steps
from advisor.model.study import Study


class CurveSaturated(Rule):
    """Training and validation curves were flat long before the training ended.

    ## What it looks at
    The rule examines the best few trials at a constant learning rate. The rule finds the step after which the smoothed
    objective stays close to its final level. The length of training that a trial needed is the step at which its curve became
    flat, plus a margin. The rule fires if all of the following conditions hold in most of the best trials:

    - a good part of the steps can be saved,
    - the upper confidence bound of the gain of the steps to drop is near zero,
    - the curve neither rises again nor still improves,
    - the cost on training data, if logged, is flat too (a cost that still falls may indicate overfitting).

    A decaying learning rate keeps a curve flat by itself, so only steps at a constant learning rate count. At least 55 % of the
    steps must be at a constant learning rate; the advice keeps the length of the decay that follows these steps. If the rule
    cannot judge, train with the same schedule at half the length and compare the results.

    ## Why it matters
    Flat curves show that compute does not limit the study. The compute spent on steps without a gain could pay for more trials.

    ## What to do
    Set `max_train_steps` to the length that the slowest of the best trials needed, including the margin, and shorten the
    schedule equally. If you keep the best checkpoint, a training that is too long only costs time. If in doubt, train longer.

    If many trials were pruned, the rule cannot judge, because pruning by early results favours trials that settle early.

    In the following two cases, the rule gives advice but does not shorten the training. If different settings reach the same
    value in the first 5 % of the steps, they may be stuck on a plateau. If the steps to drop could hide a gain larger than the
    lead of the best trial and the noise between trials, short runs could rank the best settings wrongly.

    ## How sure
    Confidence is 0.95 times the share of the best trials that settled early. A trial counts only if the gain in the dropped
    steps is below the threshold with 95 % confidence, so noisy curves raise no finding. In simulations (200 studies per
    design), the rule fired in at most 0.5 % of studies whose curves fall or rise to the end. If curves of 50 evaluations settle
    within the first fifth, the rule fired in 99 % of simulated studies with noise of 0.5 % of the gain, and in 72 % with noise
    of 2 %.
    """

    playbook = "Examining the training curves"
    goal = "steps"
    needs_learning = True
    compares_results = True
    predicts = "no-worse"
    while_running = True
    as_if_ended = True
    explains = (
        Relation(
            rules=("steps-compute-bound",),
            shares="trials",
            because="Curves that are flat long before their end show that compute does not limit the study.",
            waits=False,
        ),
        Relation(rules=("step-position",), because="On a flat curve, small ups and downs decide which step is the best."),
    )

    best: Count = 3
    """Number of best trials to judge. The Deep Learning Tuning Playbook asks to examine at least the best few trials."""
    reach: Share = 0.1
    """Maximum difference between the objectives of a judged trial and the best trial, as a share of the best trial's gain over
    its run. Our choice."""
    tolerance: Share = curve_tails.SETTLING_TOLERANCE
    """Maximum distance of a settled curve from its final level, as a share of the run's gain; a distance of twice the noise is
    always allowed. Our choice."""
    rest: Share = 0.05
    """Maximum gain of the dropped steps (95 % bound), as a share of the run's gain; on training data, twice this share is
    allowed. Our choice."""
    margin: Factor = curve_tails.SUFFICIENT_LENGTH_FACTOR
    """Length of the next training as a multiple of the steps until the curves settle. We chose a rather large multiple, because
    a training that is too short does more harm than one that is too long."""
    saved: Share = 0.25
    """Minimum share of the steps that can be saved. Our choice."""
    material: Share = 0.01
    """Minimum forecast gain of a trial that still improves, as a share of its past gain; the same limit as in
    `curve-still-improving`."""
    false_alarms: Share = 0.05
    """Maximum share of studies that raise a finding although the curves still fall."""

    def check(self, study: Study) -> Iterator[Finding]:
        endings = curve_tails.best_curve_endings(study, self.best, self.reach, tolerance=self.tolerance, margin=self.margin)
        limits = {"rest": self.rest, "saved": self.saved, "material": self.material, "alpha": self.false_alarms}
        flat = [e for e in endings if e.has_saturated(**limits)]
        if 2 * len(flat) > len(endings):
            # Pruning by early results keeps settings that learn fast at first; pruned settings may need longer training.
            settings.require_unpruned(study)
            yield self._build_finding(study, flat, len(endings))

    def _build_finding(self, study: Study, flat: list[CurveEnding], judged: int) -> Finding:
        steps = curve_tails.median_planned_steps(study, flat)
        slowest = max(flat, key=lambda e: e.settled_share * e.last_constant_rate_step / e.steps)
        settled_share = Percent(slowest.settled_share * slowest.last_constant_rate_step / slowest.steps)
        decay_share = Percent(1 - slowest.last_constant_rate_step / slowest.steps)
        new_steps = min(round_up_steps((self.margin * settled_share.value + decay_share.value) * steps), steps)
        gain_bound = Percent(max(0.0, *(e.plateau.late_gain_bound for e in flat)), 1)
        decays = slowest.last_constant_rate_step < slowest.steps
        why = (
            f"The slowest trial settled at {settled_share} of {study.length(steps)}. We train {self.margin:g} times as long as "
            f"this trial needed{f' and keep the decay, {decay_share} of the steps' if decays else ''}."
        )
        action, changes = _build_advice(study, flat, steps, new_steps, why)
        trials = say("{flat} of the {judged} best trials are", flat=len(flat), judged=judged)
        if judged == 1:
            trials = say("{trial} is", trial=Name(flat[0].trial.name) if len(study.trials) == 1 else "The best trial")
        elif len(flat) == judged:
            trials = say("The {judged} best trials are", judged=judged)
        after_margin = say("Training after {fewer}, beyond a safety margin,", fewer=study.at(new_steps))
        return self.finding(
            say(
                "{trials} flat from {settled} of {steps} on, in {curves}. {rest_of} brought at most {rest} of the gain, or "
                "{bounds}.",
                trials=trials,
                settled=study.at(round_up_steps(settled_share.value * steps)),
                steps=steps,
                curves="training and validation" if any(e.train_plateau for e in flat) else "validation",
                rest_of="The remaining training at a constant learning rate" if decays else after_margin,
                rest=gain_bound,
                bounds=_format_gain_bound(study, flat),
            ),
            action=action,
            severity="note",
            confidence=0.95 * len(flat) / judged,
            trials=[e.trial for e in flat],
            evidence=self._evidence(study, flat, judged, gain_bound),
            changes=changes,
        )

    def _evidence(self, study: Study, flat: Sequence[CurveEnding], judged: int, bound: Percent) -> tuple[Evidence, ...]:
        caption = say("After the marked step, no trial gains more than {rest} of what it gained before.", rest=bound)
        ends = [(e.trial, round(e.settled_share * e.last_constant_rate_step)) for e in flat]
        marks = [Mark(trial=trial.id, step=step, label="settled") for trial, step in ends]
        settled = list_message([Percent(e.settled_share) for e in flat], 9)
        tolerances = list_message([Percent(e.plateau.tolerance, 2) for e in flat], 9)
        bounds = list_message([Percent(max(e.plateau.late_gain_bound, 0), 2) for e in flat], 9)
        limits = say("{rest} of the gain, {saved} of the steps", rest=Percent(self.rest), saved=Percent(self.saved))
        return curve_plot(study.spec.objective.metric, caption, [e.trial for e in flat], marks=marks), table(
            ("trials judged", say("{judged}; {flat} settled early", judged=judged, flat=len(flat))),
            ("steps until the curve settled, as a share of the steps", settled),
            ("tolerance around the final level, as a share of the gain", tolerances),
            ("maximum gain of the remaining steps", bounds),
            ("limits of this gain and of the steps saved", limits),
        )


def _format_gain_bound(study: Study, flat: Sequence[CurveEnding]) -> Message:
    gain_bound, lead = curve_tails.late_gain_bound(study, flat), curve_tails.difference_to_second_best(study)
    bound_text = say("{bound} of {metric}", bound=Number(gain_bound, 2), metric=Name(study.spec.objective.metric))
    if curve_tails.are_on_one_plateau(study, flat):
        level = Objective(study.objective_value(float(study.costs[flat[0].trial.index])))
        return say("{bound}. Different settings stay at the same value, {level}, from the start", bound=bound_text, level=level)
    if math.isnan(lead):
        return bound_text
    noise = curve_tails.max_noise_difference(study, flat)
    if noise >= gain_bound > lead:
        return say("{bound}; equally good trials differ by up to {noise}", bound=bound_text, noise=Number(noise, 2))
    return say("{bound}; the best trial leads the second best by {lead}", bound=bound_text, lead=Number(lead, 2))


def _build_advice(
    study: Study, flat: Sequence[CurveEnding], steps: int, new_steps: int, why: str
) -> tuple[Message, tuple[Change, ...] | None]:
    length = study.length(new_steps)
    if curve_tails.are_on_one_plateau(study, flat):
        return say(
            "Check that these trials are not stuck: compare their outputs with a constant prediction, and try another "
            "initialisation or a warmup."
        ), None
    max_gain = max(curve_tails.difference_to_second_best(study), curve_tails.max_noise_difference(study, flat))
    if curve_tails.late_gain_bound(study, flat) > max_gain:
        return say(
            "Before you shorten the training, train the two best settings for only {length} and check that the same setting leads.",
            length=length,
        ), None
    schedule = (
        "Shorten the learning-rate schedule with the training, so that both still end together. Look at the number of steps again "
        "after you change regularisation, augmentation or the model."
    )
    action = "Shorten the training from {steps} to {fewer} and spend the time saved on more trials."
    changes = change_training_length(study, new_steps, why=why), Advise(text=schedule)
    return say(action, steps=steps, fewer=length), changes
