"""Detects instability in the loss of one trial: a rise or divergence early in training, or a jump or divergence later."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.stats import binom

from advisor.computed import computed
from advisor.computed.stability import instability, validation_check
from advisor.model.message import Message, Name, Number, Percent, say
from advisor.model.reading import WorkloadKind
from advisor.model.space import BoolArray, FloatArray, IntArray
from advisor.model.study import Curve, Study, Trial
from advisor.stats import jumps, tails

MIN_EARLY_POINTS = 3
"""Minimum number of points in early training to test for a rise."""
_MIN_POINTS_BEFORE_DIVERGENCE = 5
"""Minimum number of points that can show that the loss fell before it diverged."""
_MIN_RISE_STEPS = 10
"""Minimum number of steps of a rise in early training, by default."""
_RUNNING_MEDIAN_POINTS = 9
"""Number of points of the running median of a loss. A jump ends where the median returns to the level before it."""
_MAX_EXPLAINED_JUMPS = 16
"""Maximum number of jumps per loss that are ignored because evaluations or other trials explain them."""
_MAX_P_VALUE = 0.05
"""Significance level for the loss of one trial."""
_MIN_SHARE_OF_BEST_GAIN = 0.02
"""Minimum rise of a loss that is not negligible, as a share of the best trial's total improvement."""
_KINDS_WITH_RISING_LOSSES: frozenset[WorkloadKind] = frozenset(("reinforcement-learning", "gan", "self-supervised"))
"""Workloads whose training losses may rise in healthy training, so that only the objective shows instability."""
_MIN_BLOWUP_SHARE = 0.1
"""Minimum rise, as a share of the trial's improvement, by default."""


@dataclass(frozen=True, slots=True)
class TrialInstability:
    """The most severe instability of one trial."""

    trial: Trial
    metric: str
    """Name of the unstable metric, as the trial logged it."""
    judged_point_count: int
    """Number of points in which instability was searched; 0 if they are too few to call the trial stable."""
    p_value: float = 1.0
    """p-value of the instability, computed only from this trial's points; 0 for a divergence."""
    share: float = 0.0
    """Size of the rise as a share of the trial's improvement; inf for a divergence, 0 if negligible."""
    step: int = 0
    description: Message = field(default_factory=lambda: Message(()))
    """Clause that follows the trial's name in a sentence."""
    level_before: float = math.nan
    """Level of the metric before the instability, in the metric's unit; NaN if unknown."""
    level_after: float = math.nan
    """Level of the metric after the instability, in the metric's unit; NaN if the trial diverged."""
    noise_limit: float = math.nan
    """Value that noise alone exceeds in one of 20 stable trials; NaN if unknown."""
    curve_noun: str = "loss"
    """Kind of the unstable curve: `loss` or `objective`."""

    def sentence(self, at: Message | str = "") -> Message:
        """Return a sentence without a full stop. at: text about the trial's learning rate."""
        name = Name(self.trial.name)
        return say("The {noun} of {trial}{at} {event}", noun=self.curve_noun, trial=name, at=at, event=self.description)

    @property
    def levels_row(self) -> Message:
        """Return a table row: the level before, the level after and, if known, the noise limit."""
        before, after, limit = Number(self.level_before, 4), Number(self.level_after, 4), Number(self.noise_limit, 4)
        if not math.isfinite(self.noise_limit):
            if not math.isfinite(self.level_after):
                return say("not finite")
            return say("{before}, {after}", before=before, after=after)
        return say("{before}, {after}, {limit}", before=before, after=after, limit=limit)


@computed
def blowup_at_start(study: Study, trial: Trial, lasting: int) -> TrialInstability | None:
    """Return the rise or divergence of the loss in early training; None if no loss was logged. lasting: minimum number of steps
    for which the loss must stay high; a single high point suffices if points are further apart."""
    curves = instability.loss_curves(study, trial)
    if not curves:
        return None
    last_early_step = instability.last_early_step(study, trial)
    improving = [(n, c) for n, c in curves if _should_improve(study, n)]
    judged_curves = [(n, c) for n, c in improving if _count_points_until(c, last_early_step) >= MIN_EARLY_POINTS]
    # A short diagnostic run may have few values of a validation loss, so prefer a loss that was logged at every step.
    probe_end = min(last_early_step, instability.PROBE_STEPS)
    curves_of_probe = [(n, c) for n, c in judged_curves if _count_points_until(c, probe_end) >= MIN_EARLY_POINTS]
    metric, curve = (curves_of_probe or judged_curves or curves)[0]
    at = instability.first_diverged_step(study, trial)
    if at is not None and len(curve.finite) and instability.has_diverged_early(study, trial, at):
        return _early_divergence(study, trial, metric, curve, at)
    points = _count_points_until(curve, probe_end)
    points = points if points >= MIN_EARLY_POINTS else 0
    stable_result = TrialInstability(trial, metric, points, curve_noun=_curve_noun(study, metric))
    if not judged_curves:
        return stable_result
    return _early_rise(study, stable_result, curve.finite, last_early_step, lasting) or stable_result


def _early_divergence(study: Study, trial: Trial, metric: str, curve: Curve, at: int) -> TrialInstability:
    cost_sign = _cost_sign(study, metric)
    first_value = cost_sign * float(curve.finite.values[0])
    how = _describe_divergence(study, trial, curve.finite, at, cost_sign)
    description = say("started at {first} and {how}", first=Number(first_value, 4), how=how)
    early_points = _count_points_until(curve, instability.last_early_step(study, trial))
    noun = _curve_noun(study, metric)
    return TrialInstability(trial, metric, early_points, 0.0, math.inf, at, description, first_value, curve_noun=noun)


def _early_rise(study: Study, stable: TrialInstability, finite: Curve, end: float, lasting: int) -> TrialInstability | None:
    """Return a rise of the loss that starts before step `end` and lasts `lasting` steps. stable: result without one."""
    early_points = _count_points_until(finite, end)
    min_rise_steps = min(lasting, max(int(end - finite.steps[0]) // 5, 1))
    min_rise_points = int(np.count_nonzero(finite.steps[1:early_points] <= finite.steps[0] + min_rise_steps))
    rise = jumps.early_rise(finite.values, early_points, max(min_rise_points, 1))
    if rise is None:
        return None
    cost_sign = _cost_sign(study, stable.metric)
    step_of_rise = int(finite.steps[rise.index])
    start, level, limit = cost_sign * rise.first_value, cost_sign * rise.highest_level, cost_sign * rise.noise_limit
    template = "{went} from {start} at its start to {level} at {place}"
    went, place = "rose" if cost_sign > 0 else "fell", study.at(step_of_rise)
    description = say(template, went=went, start=Number(start, 4), level=Number(level, 4), place=place)
    is_material = _is_rise_material(study, stable.metric, rise.highest_level - rise.first_value)
    return replace(
        stable,
        p_value=rise.p_value,
        share=rise.share if is_material else 0.0,
        step=step_of_rise,
        description=description,
        level_before=start,
        level_after=level,
        noise_limit=limit,
    )


def _count_points_until(curve: Curve, end: float) -> int:
    return int(np.searchsorted(curve.finite.steps, end, side="right"))


@computed
def blowup_in_mid_training(study: Study, trial: Trial) -> TrialInstability | None:
    """Return the divergence or else the most significant jump of the loss after early training; None for too short curves."""
    curves = instability.loss_curves(study, trial)
    divergence = _late_divergence(study, trial)
    if divergence is not None:
        return divergence
    judged_curves = [(n, c.finite) for n, c in curves if len(c.finite) >= tails.MIN_POINTS and _should_improve(study, n)]
    if not judged_curves:
        return None
    metric, curve = judged_curves[0]
    first_late_index = int(np.searchsorted(curve.steps, instability.last_early_step(study, trial), side="right"))
    learning_rates = instability.learning_rates_at(study, trial, curve.steps.astype(np.float64))
    jump = _unexplained_jump(study, trial, metric, first_late_index, learning_rates)
    noun, sign = _curve_noun(study, metric), _cost_sign(study, metric)
    if jump is None:
        return TrialInstability(trial, metric, len(curve), curve_noun=noun)
    before, after, limit = sign * jump.level_before, sign * jump.level_after, sign * jump.noise_limit
    step = int(curve.steps[jump.index])
    peak_value = sign * float(curve.values[jump.index : jump.index + jump.points].max())
    is_rise_gradual = curve.values[jump.index] - jump.level_before < (jump.level_after - jump.level_before) / 2
    place = f", from {study.at(step)} on" if is_rise_gradual else f" at {study.at(step)}"
    text = _describe_jump(jump, sign, peak_value, place)
    is_material = jump.is_log or _is_rise_material(study, metric, jump.level_after - jump.level_before)
    share = jump.share if is_material else 0.0
    return TrialInstability(trial, metric, len(curve), jump.p_value, share, step, text, before, after, limit, noun)


def _describe_jump(jump: jumps.Jump, sign: float, peak: float, place: str) -> Message:
    """Return a clause about a jump of the loss. peak: worst value within the jump, in the metric's unit."""
    before, after = sign * jump.level_before, sign * jump.level_after
    went, extreme = ("jumped", "peak") if sign > 0 else ("fell", "lowest")
    to = say("{after}", after=Number(after, 4))
    # The level after a jump is a median of several points, so the first point after the jump is usually higher in a plot.
    if sign * (peak - after) > _MIN_BLOWUP_SHARE * abs(after - before):
        to = say("about {after} ({extreme} {peak})", after=to, extreme=extreme, peak=Number(peak, 4))
    fall = "its improvement on a log scale" if jump.is_log else "its improvement"
    if 0.995 <= jump.share < 1.05:
        undone = say("all its improvement")
    elif jump.share <= 1:
        undone = say("{share} of {fall}", share=Percent(jump.share), fall=fall)
    elif jump.is_log:
        undone = say("more than all its improvement")
    else:
        undone = say("{times} times {fall}", times=Number(jump.share, 2), fall=fall)
    template = "{went} from {before} to {to}{place}, which undid {undone}"
    return say(template, went=went, before=Number(before, 4), to=to, place=place, undone=undone)


def _unexplained_jump(study: Study, trial: Trial, metric: str, first: int, rates: FloatArray | None) -> jumps.Jump | None:
    """Return the most significant jump of the loss that has no harmless explanation. Jumps are harmless if evaluations do not
    get worse, or if the losses of most trials rise at the same step."""
    curve = dict(instability.loss_curves(study, trial))[metric].finite
    heldout_curves = validation_check.heldout_curves(study, trial, metric)
    explained: list[jumps.Jump] = []
    for _ in range(_MAX_EXPLAINED_JUMPS):
        jump = _jump_or_collapse(curve.values, first, rates, explained, lasting=study.kind == "reinforcement-learning")
        if jump is None or jump.p_value > _MAX_P_VALUE:
            return jump
        median_points = max(jump.points, _RUNNING_MEDIAN_POINTS)
        recovery_indices = np.flatnonzero(jumps.running_medians(curve.values[jump.index :], median_points) <= jump.level_before)
        end = len(curve)
        if len(recovery_indices):
            end = min(jump.index + int(recovery_indices[0]) + (median_points - 1) // 2, end)
        step = int(curve.steps[jump.index])
        is_harmless = validation_check.are_evaluations_unharmed(heldout_curves, step, int(curve.steps[end - 1]))
        if not is_harmless and not _rises_in_most_trials(study, trial, metric, step, jump.points):
            return jump
        explained.append(jump)
    return None


def _jump_or_collapse(
    values: FloatArray, first: int, rates: FloatArray | None, explained: Sequence[jumps.Jump], *, lasting: bool
) -> jumps.Jump | None:
    """Return the most significant jump of the loss or, if no jump is significant, a collapse that lasts to the end. lasting:
    return only a collapse, because rewards often dip for a while."""
    jump = None if lasting else jumps.largest_jump(values, first, rates, explained)
    if jump is not None and jump.p_value <= _MAX_P_VALUE:
        return jump
    collapse = jumps.find_collapse(values, first, explained)
    return collapse if collapse is not None and collapse.p_value <= _MAX_P_VALUE else jump


def _rises_in_most_trials(study: Study, trial: Trial, metric: str, step: int, points: int) -> bool:
    """Return True if the metric rises significantly in most other trials, at the same step or share of their length."""
    own = study.metric(trial, metric).steps
    share_of_length = (step - own[0]) / max(own[-1] - own[0], 1)
    rises, chances = np.zeros((len(study.trials), 2), dtype=np.bool_), []
    for other in study.trials:
        mask, steps = _steep_rises(study, other, metric, points)
        if other.index == trial.index or not len(steps) or not mask.any():
            continue
        chances.append(float(mask.mean()))
        for column, at in enumerate((step, steps[0] + share_of_length * (steps[-1] - steps[0]))):
            nearest_index = int(np.searchsorted(steps, at))
            rises[other.index, column] = nearest_index < len(steps) and mask[nearest_index]
    rising_trial_count = int(rises.sum(axis=0).max())
    p_value = 2 * float(binom.sf(rising_trial_count - 1, len(chances), np.mean(chances))) if chances else 1.0
    return 2 * rising_trial_count >= len(chances) and p_value <= _MAX_P_VALUE


@computed
def _steep_rises(study: Study, trial: Trial, metric: str, points: int) -> tuple[BoolArray, IntArray]:
    curve = dict(instability.loss_curves(study, trial)).get(metric)
    if curve is None:
        return np.zeros(0, dtype=np.bool_), np.zeros(0, dtype=np.int64)
    return jumps.steep_rises(curve.finite.values, points), curve.finite.steps


def _is_rise_material(study: Study, metric: str, rise: float) -> bool:
    """Return True if the rise is not negligible compared to the improvement of the best trial. If the trial itself improves little,
    its own improvement is no useful scale."""
    for best in study.ranked()[:1]:
        curve = dict(instability.loss_curves(study, best)).get(metric)
        if curve is not None and len(values := curve.finite.values) >= 3:
            return rise >= _MIN_SHARE_OF_BEST_GAIN * (float(values[0]) - float(jumps.running_medians(values, 3).min()))
    return True


def is_unstable(study: Study, trial: Trial) -> bool:
    return is_unstable_early(study, trial) or _is_significant_blowup(blowup_in_mid_training(study, trial))


def is_unstable_early(study: Study, trial: Trial) -> bool:
    return _is_significant_blowup(blowup_at_start(study, trial, _MIN_RISE_STEPS))


def _is_significant_blowup(blowup: TrialInstability | None) -> bool:
    return blowup is not None and blowup.p_value <= _MAX_P_VALUE and blowup.share >= _MIN_BLOWUP_SHARE


def _late_divergence(study: Study, trial: Trial) -> TrialInstability | None:
    at = instability.first_diverged_step(study, trial)
    if at is None or instability.has_diverged_early(study, trial, at):
        return None
    for metric, curve in instability.loss_curves(study, trial):
        earlier = curve.finite.values[curve.finite.steps < at]
        if not _should_improve(study, metric) or len(earlier) < _MIN_POINTS_BEFORE_DIVERGENCE:
            continue
        sign, noun = _cost_sign(study, metric), _curve_noun(study, metric)
        if _has_lost_its_gain(study, trial, curve.finite):
            best, last = sign * float(earlier.min()), sign * float(curve.finite.values[-1])
            step = int(curve.finite.steps[int(earlier.argmin()) + 1])
            text = _describe_divergence(study, trial, curve.finite, at, sign)
            return TrialInstability(trial, metric, len(curve), 0.0, math.inf, step, text, best, last, curve_noun=noun)
        if float(np.median(earlier[-3:])) < earlier[0]:
            text = say("{how}, after it had improved", how=_describe_divergence(study, trial, curve.finite, at, sign))
            return TrialInstability(trial, metric, len(curve), 0.0, math.inf, at, text, curve_noun=noun)
    return None


def _all_finite(study: Study, trial: Trial) -> bool:
    return all(np.isfinite(c.values).all() for _, c in instability.loss_curves(study, trial))


def _has_lost_its_gain(study: Study, trial: Trial, curve: Curve) -> bool:
    first, best, last = (float(v) for v in (curve.values[0], curve.values.min(), curve.values[-1]))
    return _all_finite(study, trial) and best < first and last - best > (first - best) / 2


def _describe_divergence(study: Study, trial: Trial, curve: Curve, at: int, sign: float) -> Message:
    """Return a clause that says how the trial diverged at step `at`. curve: finite costs of the trial, at least one."""
    if not _all_finite(study, trial):
        return say("is not finite from {place} on", place=study.at(at))
    last_value = Number(sign * float(curve.values[-1]), 4)
    if not _has_lost_its_gain(study, trial, curve):
        return say("ends with the status diverged at {place}, where it is {last}", place=study.at(at), last=last_value)
    best_index = int(curve.values.argmin())
    best, place = Number(sign * float(curve.values[best_index]), 4), study.at(int(curve.steps[best_index]))
    template = "went back from {best} at {place} to {last} at its end, {end}"
    return say(template, best=best, place=place, last=last_value, end=study.at(int(curve.steps[-1])))


def _curve_noun(study: Study, metric: str) -> str:
    is_objective = metric == study.spec.objective.metric and study.signals.get("valid_loss") != metric
    return "objective" if is_objective else "loss"


def may_losses_rise(study: Study) -> bool:
    return study.kind in _KINDS_WITH_RISING_LOSSES


def _should_improve(study: Study, metric: str) -> bool:
    return metric == study.spec.objective.metric or not may_losses_rise(study)


def _cost_sign(study: Study, metric: str) -> float:
    return -1.0 if metric == study.spec.objective.metric and not study.minimize else 1.0


@dataclass(frozen=True, slots=True)
class StudyInstability:
    """The unstable trials of a study, early in training or later."""

    judged_count: int
    """Number of trials whose loss has enough points to judge whether it is stable."""
    unstable: tuple[TrialInstability, ...]
    """The most severe instability of each unstable trial, most significant first."""
    p_value: float
    """Probability that noise alone makes any judged trial seem as unstable as the most significant unstable trial."""


def study_instability(
    study: Study, trials: Sequence[Trial], *, lasting: int, material: float, false_alarms: float
) -> StudyInstability:
    """Find the unstable trials. false_alarms: joint significance level over all trials, early and late. lasting: minimum
    duration of an early rise, in steps. material: minimum rise, as a share of the trial's improvement."""
    pairs = ((blowup_at_start(study, t, lasting), blowup_in_mid_training(study, t)) for t in trials)
    judged = [[b for b in pair if b is not None and (b.judged_point_count or b.p_value < 1)] for pair in pairs]
    judged_count = sum(map(bool, judged))
    test_count = 2 * max(judged_count, 1)
    significant = [[b for b in pair if b.p_value * test_count <= false_alarms and b.share >= material] for pair in judged]
    most_severe = [min(pair, key=lambda b: (b.p_value, -b.share)) for pair in significant if pair]
    most_severe.sort(key=lambda b: (b.p_value, -b.share, b.trial.index))
    p_value = min(most_severe[0].p_value * test_count, 1.0) if most_severe else 1.0
    return StudyInstability(judged_count, tuple(most_severe), p_value)
