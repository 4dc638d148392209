"""The chance level (the score of a model that learned nothing), or else a trial's first evaluation, and tests whether trials score
better than this level."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import stats

from advisor.computed.pipeline.validation import percentage_factor
from advisor.model.message import Message, Objective, say
from advisor.model.space import FloatArray, as_number, words_of_name
from advisor.model.study import Curve, Signal, Study, Trial
from advisor.stats.curve import MIN_POINTS, noise_sd, rise_at_point, rise_of_level

_REGRESSION_METRIC_WORDS = set("mse mae rmse squared absolute angular relative pixel recon reconstruction".split())
_ZERO_CHANCE_METRIC_WORDS = set("mcc kappa r2 pearson spearman corr correlation".split())
_PRECISION_RECALL_WORDS = {"pr", "prc", "precision", "recall"}
"""Words that mark a metric as an area under a precision-recall curve, which is the share of positive examples for guessing."""
_ERROR_RATE_WORDS = {"error", "err"}
_CROSS_ENTROPY_WORDS = set("loss nll ce xent entropy crossentropy".split())
_TRAINING_LOSS_SIGNALS: tuple[Signal, ...] = ("train_loss", "train_eval_loss")
_MIN_EVALUATION_INTERVAL = 10
"""Minimum number of steps between evaluations for an evaluation at step 0 to count as made before training. At shorter
intervals between evaluations, step 0 may be the end of the first epoch."""
_MAX_LOSS_OVER_CHANCE = 1.5
"""Maximum ratio of a falling loss to the loss of guessing. A loss above this ratio is not a mean over examples. Our choice."""
_MIN_SCORE_REPETITIONS = 3
"""Minimum number of evaluations per distinct score at which each score counts as the share of a single class. Our choice."""
_MIN_EQUAL_EVALUATION_SHARE = 0.8
_MAX_DISTANCE_FROM_UNIFORM = 0.02
"""Maximum relative distance of the lowest validation loss from the entropy of equally large classes to infer their number."""
_MIN_RELATIVE_LOSS_FALL = 0.02


@dataclass(frozen=True, slots=True)
class ChanceLevel:
    """The score of a model that learned nothing, converted to a cost (lower is better)."""

    cost: float
    perfect_cost: float
    """Cost of a perfect score; NaN if unknown."""
    error: float
    """Standard error of the cost of random guessing."""
    phrase: Message
    """Phrase for the chance level that completes "better than ..."."""
    is_known: bool = True
    """False if the trial's first evaluation is used because the chance level is unknown."""
    right_answers: float = math.nan
    """Share of right answers that guessing gets, in the metric's unit; NaN if the metric does not count right answers."""


@dataclass(frozen=True, slots=True)
class SkillOverGuessing:
    """Improvement of a trial's best cost over the cost of random guessing."""

    trial: Trial
    chance_level: ChanceLevel
    best_cost: float
    """Lowest median cost over a tenth of the trial's evaluations; the lowest single cost if there are few evaluations."""
    error: float
    p_value: float
    """p-value of the gain: probability that a trial that learned nothing gains as much."""
    cost_scale: float
    """Distance in cost from random guessing to a perfect score. If the perfect score is unknown, the larger of the cost of
    guessing and the range of the study's results."""

    @property
    def gain_share(self) -> float:
        """Gain over random guessing, as a share of the distance to a perfect score or of the value that replaces an unknown
        distance."""
        return (self.chance_level.cost - self.best_cost) / self.cost_scale

    def gain_exceeds(self, material: float, alpha: float) -> bool:
        """Return True if the gain over guessing significantly exceeds a minimum: `material` times the distance to a perfect
        score, or the share of answers that guessing gets right if that share is smaller.

        If no perfect score is known, any significant gain counts.
        """
        minimum = material * self.cost_scale if math.isfinite(self.chance_level.perfect_cost) else 0.0
        if math.isfinite(self.chance_level.right_answers):
            minimum = min(minimum, self.chance_level.right_answers)
        gain = self.chance_level.cost - self.best_cost
        return self.p_value <= alpha and gain - self.error * float(stats.norm.isf(alpha)) > minimum

    def probability_of_gain_below(self, share: float) -> float:
        """Return the probability, given only the noise, that the true gain is less than `share` times `cost_scale`."""
        if self.error <= 0:
            return float(self.gain_share < share)
        return float(stats.norm.cdf((share - self.gain_share) * self.cost_scale / self.error))


def compute_skills(study: Study, trials: Sequence[Trial]) -> list[SkillOverGuessing]:
    """Return the gain over random guessing for each trial with a chance level. If a chance level is known for the study, the
    result contains all trials."""
    known = _known_chance_level(study, trials)
    observed = _level_of_constant_trials(study, trials) or _constant_prediction_level(study, trials)
    if known is None:
        known = observed
    elif observed is not None and observed.cost < known.cost:
        # The chance level of equally large classes underestimates guessing if one class is more frequent.
        known = replace(observed, error=known.error, right_answers=known.right_answers)
    start = _usual_first_evaluation(study, trials)
    levels = [(trial, known or _first_evaluation_level(study, trial, start)) for trial in trials]
    return [_skill_of_trial(study, trial, level) for trial, level in levels if level is not None]


def _skill_of_trial(study: Study, trial: Trial, level: ChanceLevel) -> SkillOverGuessing:
    values = study.cost_curve(trial).finite.values[0 if level.is_known else 1 :]
    rise = rise_of_level(values, level.cost, level.error)
    scale = max(abs(level.cost), float(np.ptp(study.costs[study.feasible])), 1e-300)
    if math.isfinite(level.perfect_cost):
        scale = max(level.cost - level.perfect_cost, 1e-300)
    if rise is not None:
        return SkillOverGuessing(trial, level, rise.best_level, rise.error, rise.p_value, scale)
    best = float(values.min())
    gain = level.cost - best
    chance = float(stats.norm.sf(gain / level.error)) if level.error > 0 else float(gain <= 0)
    return SkillOverGuessing(trial, level, best, level.error, min(1.0, len(values) * chance), scale)


def _known_chance_level(study: Study, trials: Sequence[Trial]) -> ChanceLevel | None:
    """Return the chance level that was logged, or that follows from the classes, their sizes, the metric's name or the validation
    loss."""
    facts = {name: text for trial in reversed(study.trials) for name, text in trial.facts.items()}
    metric, examples = study.spec.objective.metric, as_number(facts.get("n_valid"))
    declared = _parse_json(facts.get("chance"))
    score = as_number(declared.get(metric)) if isinstance(declared, Mapping) else math.nan
    shares = _validation_class_shares(facts)
    shares = shares if len(shares) else _class_shares_from_loss(study, trials)
    by_name = _chance_by_metric_name(metric, shares, percentage_factor(study))
    if by_name is not None and by_name[1] == 0.0 and _has_other_loss_unit(study, by_name[0]):
        by_name = None
    if math.isfinite(score) and (by_name is None or _objective_to_cost(study, score) <= _objective_to_cost(study, by_name[0])):
        perfect = by_name[1] if by_name else _perfect_objective_value(study, score)
        return _chance_level_with_error(study, score, perfect, examples)
    return _chance_level_with_error(study, *by_name, examples) if by_name else None


def _validation_class_shares(facts: Mapping[str, str]) -> FloatArray:
    counts = _parse_json(facts.get("valid_class_counts"))
    if isinstance(counts, list) and len(counts) > 1 and all(isinstance(c, int | float) for c in counts) and sum(counts):
        return np.array(counts, dtype=np.float64) / sum(counts)
    classes = as_number(facts.get("classes"))
    return np.full(int(classes), 1 / int(classes)) if 2 <= classes <= 1e6 else np.empty(0)


def _class_shares_from_loss(study: Study, trials: Sequence[Trial]) -> FloatArray:
    """Return the shares of K equally large classes if the lowest validation loss of all trials is the loss of guessing among
    them, log K; else an empty array.

    With many classes, every loss is near some log K. A model that learned something has a much higher accuracy than 1/K at this
    loss, unless it only narrowed the classes down to K that it cannot tell apart. Only a count of right answers shows this: a
    perplexity is a function of the same loss, so every model scores like guessing among K classes.
    """
    metric = study.signals.get("valid_loss")
    if metric in (None, study.spec.objective.metric) or not set(words_of_name(metric)) & _CROSS_ENTROPY_WORDS:
        return np.empty(0)
    if not _counts_right_answers(study.spec.objective.metric):
        return np.empty(0)
    lowest = min((float(c.values.min()) for t in trials if len(c := study.curve(t, "valid_loss").finite)), default=math.nan)
    classes = round(math.exp(lowest)) if 0 < lowest < math.log(1e6) else 0
    if classes < 2 or abs(lowest - math.log(classes)) > _MAX_DISTANCE_FROM_UNIFORM * math.log(classes):
        return np.empty(0)
    return np.full(classes, 1 / classes)


def _counts_right_answers(metric: str) -> bool:
    words = set(words_of_name(metric))
    if words & (_REGRESSION_METRIC_WORDS | _CROSS_ENTROPY_WORDS):
        return False
    return bool(words & (_ERROR_RATE_WORDS | {"accuracy", "acc"})) or any(re.fullmatch(r"top\d+", word) for word in words)


def _has_other_loss_unit(study: Study, entropy: float) -> bool:
    """Return True if a loss fell by half but is still far above the loss of guessing, so that it is no mean over examples."""
    best = study.ranked()[0]
    cost = float(study.costs[best.index])
    is_entropy = bool(set(words_of_name(study.spec.objective.metric)) & _CROSS_ENTROPY_WORDS)
    return is_entropy and cost > _MAX_LOSS_OVER_CHANCE * entropy and float(study.cost_curve(best).finite.values[0]) >= 2 * cost


def _chance_by_metric_name(metric: str, shares: FloatArray, unit: float) -> tuple[float, float] | None:
    """Return the metric's values for (guessing, a perfect model); None if unknown. `shares`: share of examples in each class."""
    words = set(words_of_name(metric))
    if words & {"auc", "auroc", "rocauc"} and not words & _PRECISION_RECALL_WORDS:
        return 0.5 * unit, unit
    if words & _ZERO_CHANCE_METRIC_WORDS:
        return 0.0, 1.0
    if not len(shares) or words & _REGRESSION_METRIC_WORDS:
        return None
    best_of = next((int(w[3:]) for w in words if w.startswith("top") and w[3:].isdigit()), 0)
    right = float(np.sort(shares)[::-1][: max(best_of, 1)].sum())
    if words & _ERROR_RATE_WORDS:
        return unit * (1 - right), 0.0
    if words & {"accuracy", "acc"} or best_of:
        return unit * right, unit
    entropy = -float(np.sum(shares[shares > 0] * np.log(shares[shares > 0])))
    if words & {"perplexity", "ppl"}:
        return math.exp(entropy), 1.0
    return (entropy, 0.0) if words & _CROSS_ENTROPY_WORDS else None


def _chance_level_with_error(study: Study, value: float, perfect: float, examples: float) -> ChanceLevel:
    """Return a chance level with its sampling error over the validation examples; this error is almost zero for a loss."""
    unit = percentage_factor(study)
    share, words = value / unit, set(words_of_name(study.spec.objective.metric))
    counts_answers = perfect in (1.0, 100.0) or (bool(words & _ERROR_RATE_WORDS) and not words & _REGRESSION_METRIC_WORDS)
    error = unit * math.sqrt(share * (1 - share) / examples) if counts_answers and examples > 0 and 0 < share < 1 else 0.0
    right = abs(value - (0.0 if perfect else unit)) if counts_answers else math.nan
    phrase = say("guessing, which scores {value}", value=Objective(value))
    cost, perfect_cost = _objective_to_cost(study, value), _objective_to_cost(study, perfect)
    return ChanceLevel(cost, perfect_cost, error, phrase, right_answers=right)


def _level_of_constant_trials(study: Study, trials: Sequence[Trial]) -> ChanceLevel | None:
    """Return the best share of a class at which two or more trials stay constant, because they always predict this class.

    On a small validation set, the score of a model that learns may also stay the same, so the objective on training data must
    be constant too, or the training loss must not fall.
    """
    costs = []
    for trial in trials:
        cost, train_objective = _constant_curve_value(study.cost_curve(trial)), study.curve(trial, "train_objective")
        learned_nothing = (
            0 < abs(_constant_curve_value(train_objective)) < 1
            if len(train_objective)
            else did_training_loss_fall(study, trial) is False
        )
        if math.isfinite(cost) and learned_nothing:
            costs.append(cost)
    if len(costs) < 2 or max(abs(c) for c in costs) > 1:
        return None
    value, perfect = study.objective_value(min(costs)), 0.0 if study.minimize else -1.0
    phrase = say("{value}, at which {n} trials are constant", value=Objective(value), n=len(costs))
    return ChanceLevel(min(costs), perfect, 0.0, phrase)


def _constant_prediction_level(study: Study, trials: Sequence[Trial]) -> ChanceLevel | None:
    """Return the best score of the trials if each of their scores equals the share of one class, as if they always predicted it.

    Such scores take few distinct values, which sum to at most 1 because they are shares of classes. In addition, the training
    loss must not end below the loss of always answering with one class.
    """
    counts: Counter[float] = Counter()
    trial_count, best = 0, math.inf
    for trial in trials:
        costs = study.cost_curve(trial).finite.values[1:]
        shares = (1 - costs if study.minimize else -costs).round(6)  # float32
        are_shares = len(shares) and shares.min() > 0 and shares.max() < 1
        if are_shares and not _beats_constant_prediction(study, trial, float(shares.max())):
            counts.update(shares.tolist())
            trial_count, best = trial_count + 1, min(best, float(costs.min()))
    if trial_count < max(2, len(trials) / 2) or sum(counts) > 1.001 or counts.total() < _MIN_SCORE_REPETITIONS * len(counts):
        return None
    best_value = Objective(study.objective_value(best))
    phrase = say("one answer for all examples, which scores {value} at best", value=best_value)
    return ChanceLevel(best, 0.0 if study.minimize else -1.0, 0.0, phrase, right_answers=max(counts))


def _beats_constant_prediction(study: Study, trial: Trial, share: float) -> bool:
    """Return True if the training loss is unknown, or ends below the loss of always answering a class with this share."""
    loss = training_loss_curve(study, trial)
    if loss is None or not set(words_of_name(loss[0])) & _CROSS_ENTROPY_WORDS:
        return True
    end = loss[1].values[-max(MIN_POINTS, len(loss[1]) // 10) :]
    return bool(np.median(end) < -math.log(share))


def _constant_curve_value(curve: Curve) -> float:
    values = curve.finite.values[1:]
    if len(values) < MIN_POINTS:
        return math.nan
    median = float(np.median(values))
    return median if float(np.mean(values == median)) >= _MIN_EQUAL_EVALUATION_SHARE else math.nan


def _first_evaluation_level(study: Study, trial: Trial, usual_range: tuple[float, float]) -> ChanceLevel | None:
    """Return the trial's first evaluation as the chance level, or the study's usual first evaluation if that is better; None if
    the trial may have learned before its first evaluation."""
    curve = study.cost_curve(trial).finite
    if len(curve) < 2:
        return None
    scatter = noise_sd(curve.values[1:])
    own = float(curve.values[0]), scatter if math.isfinite(scatter) else 0.0
    cost, error = min(own, usual_range)
    perfect = _objective_to_cost(study, _perfect_objective_value(study, study.objective_value(cost)))
    phrase = say("its first evaluation, which is {value}", value=Objective(study.objective_value(cost)))
    level = ChanceLevel(cost, perfect, error, phrase, is_known=False)
    before_training = curve.steps[0] <= 0 and curve.steps[1] - curve.steps[0] >= _MIN_EVALUATION_INTERVAL
    learned_later = _skill_of_trial(study, trial, level).gain_exceeds(_MIN_RELATIVE_LOSS_FALL, 0.05)
    return level if before_training or learned_later or did_training_loss_fall(study, trial) is False else None


def _usual_first_evaluation(study: Study, trials: Sequence[Trial]) -> tuple[float, float]:
    """Return (median cost of the first evaluations, standard error of this median); (inf, 0) without evaluations."""
    first_costs = np.array([c.values[0] for t in trials if len(c := study.cost_curve(t).finite)])
    if not len(first_costs):
        return math.inf, 0.0
    median = float(np.median(first_costs))
    deviation = float(np.median(np.abs(first_costs - median))) / 0.6745
    return median, math.sqrt(math.pi / 2 / len(first_costs)) * deviation


def training_loss_curve(study: Study, trial: Trial) -> tuple[str, Curve] | None:
    """Return (name, curve) of a training loss that was logged no later than the first evaluation; None if there is none."""
    first = study.cost_curve(trial).finite.steps[:1]
    for signal in _TRAINING_LOSS_SIGNALS:
        curve = study.curve(trial, signal).finite
        if len(curve) >= MIN_POINTS and len(first) and curve.steps[0] <= first[0]:
            return study.signals[signal], curve
    return None


def did_training_loss_fall(study: Study, trial: Trial) -> bool | None:
    """Return True if the trial's training loss fell materially and beyond noise; None without such a loss."""
    loss = training_loss_curve(study, trial)
    if loss is None:
        return None
    fall = rise_at_point(loss[1].values, 0)
    return fall is not None and bool(fall.p_value <= 0.05 and fall.height > _MIN_RELATIVE_LOSS_FALL * abs(fall.level))


def _perfect_objective_value(study: Study, near: float) -> float:
    """Return the perfect objective value: 0 for minimised values that are never negative, 1 for shares; NaN if unknown."""
    costs = study.costs[np.isfinite(study.costs)]
    if study.minimize:
        return 0.0 if near > 0 and costs.min() >= 0 else math.nan
    return 1.0 if 0 <= near <= 1 and costs.min() >= -1 and costs.max() <= 0 else math.nan


def _objective_to_cost(study: Study, value: float) -> float:
    return value if study.minimize else -value


def _parse_json(text: str | None) -> Any:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None
