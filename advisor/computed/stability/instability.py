"""Selects the trials and curves that stability rules judge, finds the end of early training, and proposes remedies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.model.change import Advise, Change, RunPlan
from advisor.model.learning_rate import searched_learning_rates
from advisor.model.message import Message, Name, Number, say
from advisor.model.space import FloatArray, RangeSide
from advisor.model.study import Curve, Study, Trial
from advisor.model.words import plain_number
from advisor.stats import tails
from advisor.stats.curve import first_diverged_index

EARLY_TRAINING_SHARE = 0.1
"""Length of early training as a share of the planned steps: the longest warmup of the Deep Learning Tuning Playbook."""
WARMUP_RATE_FACTOR = 10.0
"""Learning rate that a warmup should make stable, as a multiple of the lowest unstable one (playbook)."""
PROBE_STEPS = 500
"""Number of steps of a short diagnostic run for early instability, from the Deep Learning Tuning Playbook."""
LOG_NORM_ADVICE = (
    "Log the gradient norm before clipping at every step, as train/grad_norm (the advisor's training hook does), and clip at its "
    "90th percentile."
)


@dataclass(frozen=True, slots=True)
class JudgedTrials:
    """The trials that stability rules judge: trials whose learning rate is not far above that of the best trial."""

    trials: tuple[Trial, ...]
    """The judged trials, sorted by the distance of their learning rate from that of the best trial."""
    learning_rate_name: str | None
    """Name of the searched learning rate; None if the study searches no learning rate, so that all trials are judged."""
    learning_rates: FloatArray
    """Learning rate of each trial of the study, shape (number of trials,); NaN for a trial without a learning rate."""
    best_learning_rate: float
    """Learning rate of the best trial; NaN if unknown."""

    def rate_text(self, trial: Trial) -> Message:
        """Return text about the trial's learning rate, such as " at lr 0.3 (3 times the best trial's)"; empty if unknown."""
        rate = float(self.learning_rates[trial.index])
        if not math.isfinite(rate):
            return Message(())
        place = say(" at {parameter} {rate}", parameter=Name(self.learning_rate_name or ""), rate=Number(rate))
        if not math.isfinite(self.best_learning_rate) or rate == self.best_learning_rate:
            return place
        if rate < self.best_learning_rate:
            return say("{place} (below the best trial's)", place=place)
        return say("{place} ({times} times the best trial's)", place=place, times=Number(rate / self.best_learning_rate, 2))

    def side_of_best_rate(self, trials: Sequence[Trial]) -> RangeSide | None:
        """Return "low" if all given trials have lower learning rates than the best trial, else None."""
        return "low" if all(float(self.learning_rates[t.index]) < self.best_learning_rate for t in trials) else None

    def are_above_best_rate(self, trials: Sequence[Trial]) -> bool:
        return all(float(self.learning_rates[t.index]) > self.best_learning_rate for t in trials)


def describe_other_unstable_trials(unstable: int, judged: int) -> Message:
    """Return a sentence about the unstable trials that the finding does not name; empty if there are none."""
    more = unstable - 1
    if not more:
        return Message(())
    show = "shows" if more == 1 else "show"
    return say(" {more} more of the {judged} trials judged {show} the same.", more=more, judged=judged, show=show)


def trials_near_best_rate(study: Study, reach: float) -> JudgedTrials:
    """Return the ended trials except those whose learning rate is more than `reach` times that of the best trial, because every
    training is unstable at very high learning rates. Without a searched learning rate, return all ended trials."""
    ended_trials = [t for t in study.trials if t.status != "running"]
    searched_rates, best_first = searched_learning_rates(study), study.ranked()
    if searched_rates is None:
        rank_by_index = {t.index: i for i, t in enumerate(best_first)}
        ended_trials.sort(key=lambda t: (rank_by_index.get(t.index, len(rank_by_index)), t.index))
        return JudgedTrials(tuple(ended_trials), None, np.full(len(study.trials), np.nan), math.nan)
    name, learning_rates = searched_rates
    best_rate = next((float(learning_rates[t.index]) for t in best_first if math.isfinite(learning_rates[t.index])), math.nan)
    near = [t for t in ended_trials if not learning_rates[t.index] > reach * best_rate]
    ratios = learning_rates / best_rate
    near.sort(key=lambda t: abs(math.log(ratios[t.index])) if math.isfinite(ratios[t.index]) else math.inf)
    return JudgedTrials(tuple(near), name, learning_rates, best_rate)


def loss_curves(study: Study, trial: Trial) -> list[tuple[str, Curve]]:
    """Return (metric, costs) for each curve that can show an unstable loss, the training loss first and the objective last."""
    curves: dict[str, Curve] = {}
    for signal in ("train_loss", "train_eval_loss", "valid_loss"):
        name = study.signals.get(signal)
        if name is not None and len(curve := study.metric(trial, name)):
            curves.setdefault(name, curve)
    if len(cost := study.cost_curve(trial)):
        curves.setdefault(study.spec.objective.metric, cost)
    return list(curves.items())


def last_early_step(study: Study, trial: Trial) -> float:
    """Return the last step of early training; NaN if the trial logged no loss. All steps of a probe are early training."""
    last_steps = [float(c.steps[-1]) for _, c in loss_curves(study, trial)]
    if not last_steps:
        return math.nan
    if study.probe is not None:
        return max(last_steps)
    planned_steps = study.planned_steps(trial)
    return EARLY_TRAINING_SHARE * max([*last_steps, planned_steps] if math.isfinite(planned_steps) else last_steps)


def first_diverged_step(study: Study, trial: Trial) -> int | None:
    """Return the first step after which the trial's loss is always non-finite; None if the loss ends finite. If another loss is
    still finite after the objective became non-finite, the evaluation failed, but the run did not diverge."""
    curves = loss_curves(study, trial)
    train_loss_name = study.signals.get("train_loss")
    is_any_loss_non_finite = False
    for name, curve in curves:
        at = first_diverged_index(curve.values)
        if at is None:
            continue
        is_any_loss_non_finite, step = True, int(curve.steps[at])
        last_finite_step = int(curve.steps[at - 1]) if at > 0 else step - 1
        others = [(other == train_loss_name and len(c.finite) == len(c), c.finite) for other, c in curves if other != name]
        if not any(len(c) and c.steps[-1] > (last_finite_step if is_finite else step) for is_finite, c in others):
            return step
    if trial.status == "diverged" and curves and not is_any_loss_non_finite:
        # The trial's status is "diverged", but the trial ended before it logged a non-finite value.
        return max(int(c.steps[-1]) for _, c in curves)
    return None


def has_diverged_early(study: Study, trial: Trial, step: int) -> bool:
    """Return True if a divergence at `step` lies in early training. If a run of unknown planned length ends with a divergence,
    its first `PROBE_STEPS` steps are early training."""
    last_step = max(int(c.steps[-1]) for _, c in loss_curves(study, trial))
    if step <= last_early_step(study, trial):
        return True
    is_length_unknown = not math.isfinite(trial.fact("max_train_steps")) and last_step >= study.planned_steps(trial)
    return is_length_unknown and step >= 0.9 * last_step and step <= PROBE_STEPS


def learning_rates_at(study: Study, trial: Trial, steps: FloatArray) -> FloatArray | None:
    """Return the learning rate at each of `steps`, (n,), interpolated; None if fewer than two values were logged."""
    logged_rates = study.curve(trial, "learning_rate").finite
    return np.interp(steps, logged_rates.steps, logged_rates.values) if len(logged_rates) >= 2 else None


def late_gradient_norm_curve(study: Study, trial: Trial) -> Curve:
    """Return the largest gradient norm of each logging window after early training, finite and positive."""
    return _drop_early_training(study, trial, study.peaks(trial, "grad_norm").finite)


def drop_small_batches(trial: Trial, curve: Curve) -> Curve:
    """Remove points at the last batch of each epoch if it has less than half of the usual examples, and thus larger gradients.
    Return the curve unchanged if most logging windows include a last batch."""
    epoch, batch, examples = (trial.fact(name) for name in ("steps_per_epoch", "batch_size", "n_train"))
    if not len(curve) or not epoch > 1 or not 0 < examples - (epoch - 1) * batch < batch / 2:
        return curve
    is_last_batch = np.diff((curve.steps + 1) // epoch, prepend=curve.steps[0] // epoch) > 0
    points_to_keep = ~is_last_batch if 2 * is_last_batch.sum() < len(is_last_batch) else np.ones(len(is_last_batch), dtype=bool)
    return Curve(curve.steps[points_to_keep], curve.values[points_to_keep], curve.times[points_to_keep])


def late_gradient_norms(study: Study, trials: Sequence[Trial]) -> FloatArray:
    """Return gradient norms after early training, finite and positive, of as few of the best trials as suffice for a
    percentile, because gradient norms depend on the hyperparameters."""
    rank_by_index = {t.index: i for i, t in enumerate(study.ranked())}
    gradient_norms = np.empty(0)
    for trial in sorted(trials, key=lambda t: rank_by_index.get(t.index, len(rank_by_index))):
        if len(gradient_norms) < tails.MIN_POINTS:
            late_norms = _drop_early_training(study, trial, study.curve(trial, "grad_norm").finite)
            gradient_norms = np.concatenate([gradient_norms, late_norms.values])
    return gradient_norms


def _drop_early_training(study: Study, trial: Trial, curve: Curve) -> Curve:
    points_to_keep = (curve.steps >= EARLY_TRAINING_SHARE * _trial_length(study, trial)) & (curve.values > 0)
    return Curve(curve.steps[points_to_keep], curve.values[points_to_keep], curve.times[points_to_keep])


def _trial_length(study: Study, trial: Trial) -> float:
    """Return the maximum of the trial's planned steps, its last evaluation and its last logged gradient norm."""
    planned_steps = study.planned_steps(trial) if study.probe is None else math.nan
    curves = (study.cost_curve(trial), study.curve(trial, "grad_norm"))
    return max([planned_steps if math.isfinite(planned_steps) else 0.0, *(float(c.steps[-1]) for c in curves if len(c))])


def reason_for_missing_norms(study: Study, trials: Sequence[Trial]) -> str:
    """Return a clause that says why too few gradient norms were logged after early training."""
    if not study.has("grad_norm"):
        return "no gradient norm was logged"
    curves = ((t, study.curve(t, "grad_norm").finite) for t in trials)
    ends = [(float(c.steps[-1]), _trial_length(study, t)) for t, c in curves if len(c)]
    if ends and all(last < EARLY_TRAINING_SHARE * length for last, length in ends):
        last, length = max(ends)
        return f"the gradient norm was logged only up to step {last:,.0f} of {length:,.0f}"
    return f"no trial logged {tails.MIN_POINTS} gradient norms after its start"


def clipping_advice(norms: FloatArray) -> Message:
    """Return a sentence that recommends a clipping threshold or, if too few norms are known, to log gradient norms."""
    if len(norms) < tails.MIN_POINTS:
        return say(LOG_NORM_ADVICE)
    return say(
        "Clip gradients at a norm of {norm}, the 90th percentile of the best trials' norms, and tune the threshold around it.",
        norm=Number(float(np.quantile(norms, 0.9))),
    )


def clipping_changes(norms: FloatArray, raised_from: float = math.nan) -> tuple[Change, ...]:
    """Propose a clipping threshold near the 90th percentile of unclipped gradient norms; without norms, advise to log norms.
    raised_from: present threshold if it clips most updates, so that it determines the length of the updates."""
    if len(norms) < tails.MIN_POINTS:
        return (Advise(text=LOG_NORM_ADVICE),)
    percentile_90, middle = float(np.quantile(norms, 0.9)), float(np.median(norms))
    why = f"A norm of {plain_number(percentile_90, 3)}, the 90th percentile, is a good first threshold for clipping"
    plan_numbers = {"p90": percentile_90, "median": middle, "norms": float(len(norms))}
    if raised_from < middle:
        plan_numbers["raised_from"] = raised_from
    return (RunPlan(plan="clip", numbers=plan_numbers, why=why),)


def warmup_changes(unstable: float, times: float = WARMUP_RATE_FACTOR) -> tuple[Change, ...]:
    """Propose a study of the shortest warmup that makes `times` * `unstable` stable, the lowest unstable rate or NaN."""
    plan_numbers = {"unstable_learning_rate": unstable, "times": times} if math.isfinite(unstable) else {}
    why = "Training is unstable early, and a warmup is the best remedy for early instability"
    return (RunPlan(plan="warmup", numbers=plan_numbers, why=why),)
