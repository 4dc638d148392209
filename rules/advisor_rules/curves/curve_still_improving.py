from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy import stats

from advisor.computed.curves import curve_tails, noise
from advisor.computed.curves.curve_tails import CurveEnding
from advisor.computed.steps import schedules
from advisor.engine.rule import Count, Relation, Rule, Share
from advisor.model.change import Advise, change_training_length
from advisor.model.evidence import FigureEvidence, curve_plot, table
from advisor.model.finding import Finding
from advisor.model.message import Message, Name, Number, Objective, Percent, Probability, list_message, say
from advisor.model.space import is_training_length, round_up_steps
from advisor.model.study import Study, Trial

_STRETCH_DECAY_ADVICE = (
    "Spend the extra steps at a high learning rate: stretch a cosine decay over the new length; keep a linear decay as long as it "
    "was and put the extra steps before it."
)
_KEEP_RATE_ADVICE = (
    "Keep the learning rate constant over the extra steps as well, so that this study shows only the effect of more steps."
)
_MIN_LENGTH_RATIO, _MAX_LENGTH_RATIO = 1.5, 4.0


class _LengthPair(NamedTuple):
    shorter: Trial
    longer: Trial
    ratio: float
    gain: float
    relative_gain: float
    """Improvement as a share of the shorter trial's gain from its first evaluation to its result."""


class CurveStillImproving(Rule):
    """The best trials still improve when their training ends.

    ## What it looks at
    The rule examines the objective of the best few trials over the last fifth of their steps at a constant learning rate. Two
    tests decide if the objective improves beyond its noise: a line fitted to the last evaluations (with wider errors for
    autocorrelated noise), and a sign test of their differences. The forecast is the gain expected from twice the steps. The
    forecast follows from the slope of the curve and from the decrease of this slope since the previous fifth of the steps. The
    rule fires if most of the best trials still improve and the forecast gain reaches the minimum. Trials that were cut short
    are left out.

    If the learning rate decays, the end of a curve falls although longer training would not help. The rule therefore examines
    only trials with a constant learning rate over at least 55 % of the steps. For other trials, train with the same schedule at
    half the length and compare the results. If the schedule is unknown, the curves of all trials together must also slow down
    gradually, which happens only at a constant learning rate. With only one trial, the rule assumes a constant learning rate,
    and the finding says so.

    Trials with the same settings and different lengths of training directly show the effect of more steps, under any schedule.
    In a study with such trials, the rule compares their results and makes no forecast.

    ## Why it matters
    If trials still improve, compute limits the study: longer training improves its results directly. A comparison of trials
    that still improve may rank them wrongly.

    ## What to do
    Train longer by a factor of 1.5 to 3; the finding computes this factor from the curves. Lengthen the learning-rate schedule
    too, because extra steps at the tiny final rate of the old schedule are wasted. With a cosine decay, stretch the decay over
    the new length and keep the base learning rate. With a linear decay, keep the length of the decay and extend the constant
    phase before the decay. Tune the decay again for the new length.

    ## How sure
    Confidence is the probability, given the noise, that the forecast exceeds the threshold, multiplied by the share of the best
    trials that still improve. The 90 % interval of the forecast contained the true value for 91 % of simulated curves, and for
    82 to 92 % of real curves from five sources that were truncated at half their length (`benchmarks/quality/forecasts.py`; two
    constants were chosen on these real curves).
    """

    playbook = "Examining the training curves"
    goal = "steps"
    needs_learning = True
    compares_results = True
    predicts = "longer-reaches"
    explains = (
        Relation(
            rules=("steps-compute-bound",),
            shares="trials",
            because="Curves that still fall at their end show that compute limits the study.",
            waits=False,
        ),
        Relation(
            rules=("step-position", "tuning-saturated"),
            because="The training is too short: its trials end while they still improve.",
        ),
        Relation(
            rules=("space-undersampled",),
            because="The trials end while they still improve, so the best one may only be the fastest to learn.",
        ),
    )

    best: Count = curve_tails.NUMBER_OF_BEST_TRIALS
    """Number of best trials to judge. The Deep Learning Tuning Playbook asks to examine at least the best few trials."""
    reach: Share = curve_tails.MAX_DISTANCE_FROM_BEST
    """Maximum difference between the objectives of a judged trial and the best trial, as a share of the best trial's gain over
    its run. Our choice."""
    tail: Share = curve_tails.TAIL_SHARE
    """Share of the steps that counts as the end of training; a longer part is used if it contains fewer than 5 evaluations. Our
    choice."""
    material: Share = curve_tails.MIN_WORTHWHILE_GAIN
    """Minimum forecast gain from twice the steps, as a share of the run's past gain. Our choice."""
    false_alarms: Share = 0.05
    """Maximum share of studies in which noise alone raises a finding. Each trial is tested at this significance level, and most
    trials must be significant."""

    def check(self, study: Study) -> Iterator[Finding]:
        pairs = _find_length_pairs(study)
        if pairs:
            yield from self._report_length_pairs(study, pairs)
            return
        endings = curve_tails.best_curve_endings(study, self.best, self.reach, tail=self.tail)
        improving = curve_tails.endings_still_improving(endings, self.material, self.false_alarms)
        if improving:
            yield self._build_finding(study, improving, len(endings))

    def _report_length_pairs(self, study: Study, pairs: list[_LengthPair]) -> Iterator[Finding]:
        p, share = _p_value_of_gain(study, pairs), float(np.median([pair.relative_gain for pair in pairs]))
        if p > self.false_alarms or not share > self.material:
            return
        best = pairs[0]
        now, then = (Objective(study.objective_value(float(study.costs[t.index]))) for t in (best.shorter, best.longer))
        steps = study.planned_length(best.longer, int(study.cost_curve(best.longer).steps[-1]))
        text = "Training {ratio} times as long brings {metric} from {now} to {then} at the same settings."
        metric, gains = Name(study.spec.objective.metric), list_message([Percent(q.relative_gain, 1) for q in pairs], 9)
        message = say(text, ratio=Number(best.ratio, 2), metric=metric, now=now, then=then)
        yield self.finding(
            message,
            action=say("Train for {steps}, and try twice as many with the best settings.", steps=study.length(steps)),
            severity="warning" if share >= 5 * self.material else "note",
            confidence=1 - p,
            trials=[pair.longer for pair in pairs],
            evidence=table(
                ("pairs of equal settings", len(pairs)),
                ("gain by the longer trial, as a share of the shorter one's", gains),
                ("p-value", Probability(p)),
            ),
            changes=(change_training_length(study, steps, why=str(message)),),
        )

    def _build_finding(self, study: Study, improving: list[CurveEnding], judged: int) -> Finding:
        ends, first, metric = [e.end for e in improving], improving[0], study.spec.objective.metric
        median_end = sorted(ends, key=lambda end: end.forecast_gain)[len(ends) // 2]
        steps = curve_tails.median_planned_steps(study, improving)
        new_steps = round_up_steps(steps * float(np.median([e.recommended_length_factor for e in ends])))
        probability = float(np.mean([e.chance_above(self.material) for e in ends]))
        trials, end_step = [e.trial for e in improving], study.at(first.last_constant_rate_step)
        forecast = _forecast_text(study, first)
        why = f"The best trials still improve at {end_step}. Twice the steps would bring {metric} {forecast}."
        constant = all(not e.is_rate_assumed and e.last_constant_rate_step >= e.steps for e in improving)
        trials_text = say("{n} of the {judged} best trials still improve at", n=len(improving), judged=judged)
        whose = "its" if judged == 1 else "their"
        decays = first.last_constant_rate_step < first.steps
        text = "The last {tail} of the steps before {at} brought {gain} of the gain so far."
        caption = say(text, tail=Percent(median_end.window_share), at=end_step, gain=Percent(median_end.gain, 1))
        action = "Lengthen the training from {steps} to {longer} first, and tune the learning-rate decay for the new length."
        return self.finding(
            say(
                "{trials} {at}{rate}. Twice the steps would bring {metric} {forecast}.{assumed}",
                trials="The best trial still improves at" if judged == 1 else trials_text,
                at=end_step,
                rate=f", before {whose} learning rate decays" if decays else f", {whose} end",
                metric=Name(metric),
                forecast=forecast,
                assumed=_assumed_schedule_text(study, first),
            ),
            action=say(action, steps=steps, longer=study.length(new_steps)),
            severity="warning" if median_end.forecast_gain >= 5 * self.material else "note",
            confidence=probability * len(improving) / judged,
            trials=trials,
            evidence=(curve_plot(metric, caption, trials), self._evidence_table(improving, judged, forecast)),
            changes=(
                change_training_length(study, new_steps, why=why),
                Advise(text=_KEEP_RATE_ADVICE if constant else _STRETCH_DECAY_ADVICE),
            ),
        )

    def _evidence_table(self, improving: list[CurveEnding], judged: int, forecast: Message) -> FigureEvidence:
        ends = [e.end for e in improving]
        gains = [say("{gain} ± {error}", gain=Percent(e.gain, 2), error=Percent(e.error, 2)) for e in ends]
        ratios = list_message([Number(e.gain_ratio, 2) for e in ends], 9)
        return table(
            ("trials judged", say("{judged}; {n} still improve", judged=judged, n=len(ends))),
            ("evaluations at the end", list_message([f"{e.points:,}" for e in ends], 9)),
            ("gain at the end, ± standard error", list_message(gains, 9)),
            ("ratio of the gain at the end to the gain just before the end", ratios),
            ("p-value of a flat end", list_message([Probability(e.p_value) for e in ends], 9)),
            ("forecast for twice the steps", forecast),
            ("forecast gain, as a share of the gain so far", list_message([Percent(e.forecast_gain, 1) for e in ends], 9)),
            ("maximum p-value", self.false_alarms),
            ("minimum forecast gain", Percent(self.material, 1)),
        )


def _forecast_text(study: Study, ending: CurveEnding) -> Message:
    values = curve_tails.forecast_longer_training(study, ending)
    now, forecast, low, high = map(Objective, (values.current_best, values.point_forecast, values.low, values.high))
    return say("from {now} to {middle} (90 % interval {low} to {high})", now=now, middle=forecast, low=low, high=high)


def _assumed_schedule_text(study: Study, ending: CurveEnding) -> Message | str:
    if not ending.is_rate_assumed:
        return ""
    decays = schedules.possible_decay_names(ending.trial)
    if decays:
        names = list_message(map(Name, decays), len(decays))
        return say(" This assumes that the learning rate hardly falls; the effect of {names} on it is unknown.", names=names)
    if len(study.curve(ending.trial, "learning_rate")):
        return " This assumes a constant learning rate: the logged rates do not cover the training."
    return " This assumes a constant learning rate: none was logged."


def _find_length_pairs(study: Study) -> list[_LengthPair]:
    """Return the pairs of complete trials with equal settings and planned lengths in a ratio of 1.5 to 4, best pair first."""
    groups: dict[tuple[tuple[str, str], ...], list[tuple[int, Trial]]] = defaultdict(list)
    for trial in study.ranked():
        curve = study.cost_curve(trial).finite
        has_length = math.isfinite(trial.fact("max_train_steps")) or any(map(is_training_length, trial.params))
        if trial.status == "complete" and not study.cut_short(trial) and len(curve) >= 2 and has_length:
            settings = tuple(sorted((n, str(v)) for n, v in trial.params.items() if not is_training_length(n)))
            groups[settings].append((study.planned_length(trial, int(curve.steps[-1])), trial))
    pairs = []
    for members in groups.values():
        for (short_steps, short), (long_steps, long) in pairwise(sorted(members, key=lambda m: m[0])):
            if _MIN_LENGTH_RATIO <= long_steps / max(short_steps, 1) <= _MAX_LENGTH_RATIO:
                gain = float(study.costs[short.index] - study.costs[long.index])
                short_gain = float(study.cost_curve(short).finite.values[0]) - float(study.costs[short.index])
                relative_gain = gain / short_gain if short_gain > 0 else math.nan
                pairs.append(_LengthPair(short, long, long_steps / short_steps, gain, relative_gain))
    return sorted(pairs, key=lambda p: float(study.costs[p.longer.index]))


def _p_value_of_gain(study: Study, pairs: list[_LengthPair]) -> float:
    """Return the one-sided p-value of a paired t-test; for a single pair, the gain is compared with the noise of results."""
    gains = np.array([p.gain for p in pairs])
    sd = noise.noise_between_seeds(study)[0] or noise.noise_between_evaluations(study)
    if len(gains) == 1:
        return float(stats.norm.sf(gains[0] / (math.sqrt(2) * sd))) if sd > 0 else 1.0
    error = max(float(gains.std(ddof=1)), sd) / math.sqrt(len(gains))
    return float(stats.t.sf(gains.mean() / error, len(gains) - 1)) if error > 0 else float(gains.mean() <= 0)
