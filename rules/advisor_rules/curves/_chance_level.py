"""The score of guessing, from a known chance level or else the first evaluation, and a test if trials beat it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import stats

from advisor.computed.pipeline.validation import unit_of_shares
from advisor.model.message import Message, Objective, say
from advisor.model.space import FloatArray, as_number, words_of
from advisor.model.study import Curve, Signal, Study, Trial
from advisor.stats.curve import MIN_POINTS, noise, point_rise, rise_over_lowest

_REGRESSION = set("mse mae rmse squared absolute angular relative pixel recon reconstruction".split())
_ZERO_BY_CHANCE = set("mcc kappa r2 pearson spearman corr correlation".split())
_PRECISION = {"pr", "prc", "precision", "recall"}
"""Words in names of metrics that are areas under a precision curve; there, guessing scores the share of positives."""
_ERRORS = {"error", "err"}
_ENTROPY = set("loss nll ce xent entropy crossentropy".split())
_TRAINING: tuple[Signal, ...] = ("train_loss", "train_eval_loss")
_MIN_INTERVAL = 10
"""Minimum number of steps between evaluations for step 0 to mean before training; epochs may also count from 0."""
_MAX_LOSS = 1.5
"""Maximum ratio of a falling loss to the loss of guessing; above it, the loss is a sum or has another unit. Our choice."""
_REPEATED = 3
"""Minimum number of evaluations for each of their different values, if these are the shares of single classes. Our choice."""
_CONSTANT = 0.8
"""Minimum share of equal evaluations in a constant curve."""
MATERIAL = 0.02
"""Minimum fall of a loss that shows learning, as a share of the loss."""


@dataclass(frozen=True, slots=True)
class Guess:
    """The score of a model that learned nothing, as a cost."""

    cost: float
    perfect: float
    """Cost of a perfect score; NaN if unknown."""
    error: float
    """Standard error of the cost of guessing."""
    words: Message
    """Phrase that follows "better than" and names the guess."""
    known: bool = True
    """False if the guess is the first evaluation of a trial instead of a known chance level."""
    right: float = math.nan
    """Share of right answers from guessing, in the metric's unit; NaN if the metric does not count answers."""


@dataclass(frozen=True, slots=True)
class Skill:
    """Gain of a trial's best level over guessing."""

    trial: Trial
    guess: Guess
    best: float
    """Cost of the trial's best level: the median over a tenth of its evaluations, or its best value if they are few."""
    error: float
    """Standard error of the gain over guessing."""
    p: float
    """p-value of the gain: probability that a trial that learned nothing gains as much."""
    scale: float
    """Distance from guessing to a perfect score or, if that is unknown, the range of the study's results."""

    @property
    def share(self) -> float:
        """Gain over guessing as a share of the scale."""
        return (self.guess.cost - self.best) / self.scale

    @property
    def knows_perfect(self) -> bool:
        """True if the scale ends at a perfect score."""
        return math.isfinite(self.guess.perfect)

    @property
    def counts_answers(self) -> bool:
        """True if the metric is a share of right answers with a known chance level."""
        return math.isfinite(self.guess.right)

    def above(self, material: float, alpha: float) -> bool:
        """Return True if the gain significantly exceeds `material` times the scale, or what guessing gets right if that is less.

        If no perfect score is known, any significant gain counts.
        """
        minimum = material * self.scale if self.knows_perfect else 0.0
        if self.counts_answers:
            minimum = min(minimum, self.guess.right)
        gain = self.guess.cost - self.best
        return self.p <= alpha and gain - self.error * float(stats.norm.isf(alpha)) > minimum

    def chance_below(self, share: float) -> float:
        """Return the probability, from the noise, that the true gain is less than this share of the scale."""
        if self.error <= 0:
            return float(self.share < share)
        return float(stats.norm.cdf((share - self.share) * self.scale / self.error))


def skills(study: Study, trials: Sequence[Trial]) -> list[Skill]:
    """Return the skill of each trial that can be compared with guessing; of all trials if a chance level is known."""
    known, seen = _known(study), _constant(study, trials) or _one_answer(study, trials)
    if known is None:
        known = seen
    elif seen is not None and seen.cost < known.cost:
        # The number of classes is known, but not that one of them is more frequent.
        known = replace(seen, error=known.error, right=known.right)
    start = _usual_start(study, trials)
    guesses = [(trial, known or _first(study, trial, start)) for trial in trials]
    return [_skill(study, trial, guess) for trial, guess in guesses if guess is not None]


def _skill(study: Study, trial: Trial, guess: Guess) -> Skill:
    values = study.cost_curve(trial).finite.values[0 if guess.known else 1 :]
    rise = rise_over_lowest(values, guess.cost, guess.error)
    spread = study.costs[study.feasible]
    unknown = max(abs(guess.cost), float(np.ptp(spread)), 1e-300)
    scale = max(guess.cost - guess.perfect, 1e-300) if math.isfinite(guess.perfect) else unknown
    if rise is not None:
        return Skill(trial, guess, rise.best_level, rise.error, rise.p, scale)
    best = float(values.min())
    gain = guess.cost - best
    chance = float(stats.norm.sf(gain / guess.error)) if guess.error > 0 else float(gain <= 0)
    return Skill(trial, guess, best, guess.error, min(1.0, len(values) * chance), scale)


# --- known levels of chance ------------------------------------------------------------------------------------------------------


def _known(study: Study) -> Guess | None:
    """Return the guess from the value, number of classes or class sizes that trials logged, or from the metric's name."""
    facts: dict[str, str] = {}
    for trial in study.trials:
        facts.update({k: v for k, v in trial.facts.items() if k not in facts})
    metric, examples = study.spec.objective.metric, as_number(facts.get("n_valid"))
    declared = _loads(facts.get("chance"))
    noted = as_number(declared.get(metric)) if isinstance(declared, Mapping) else math.nan
    derived = _by_name(metric, _shares(facts), unit_of_shares(study))
    if derived is not None and derived[1] == 0.0 and _in_other_unit(study, derived[0]):
        derived = None
    if math.isfinite(noted) and (derived is None or _cost(study, noted) <= _cost(study, derived[0])):
        perfect = derived[1] if derived else _perfect(study, noted)
        return _guess(study, noted, perfect, examples)
    return _guess(study, *derived, examples) if derived else None


def _shares(facts: Mapping[str, str]) -> FloatArray:
    """Return the share of validation examples in each class; empty if unknown."""
    counts = _loads(facts.get("valid_class_counts"))
    if isinstance(counts, list) and len(counts) > 1 and all(isinstance(c, int | float) for c in counts) and sum(counts):
        return np.array(counts, dtype=np.float64) / sum(counts)
    classes = as_number(facts.get("classes"))
    return np.full(int(classes), 1 / int(classes)) if 2 <= classes <= 1e6 else np.empty(0)


def _in_other_unit(study: Study, entropy: float) -> bool:
    """Return True if a loss is no mean over examples: it fell by half or more and is still far above the loss of guessing."""
    best = study.ranked()[0]
    cost = float(study.costs[best.index])
    summed = bool(set(words_of(study.spec.objective.metric)) & _ENTROPY)
    return summed and cost > _MAX_LOSS * entropy and float(study.cost_curve(best).finite.values[0]) >= 2 * cost


def _by_name(metric: str, shares: FloatArray, unit: float) -> tuple[float, float] | None:
    """Return (guessing, perfect) values of a metric over classes with these `shares`, which may be empty; None if unknown."""
    words = set(words_of(metric))
    if words & {"auc", "auroc", "rocauc"} and not words & _PRECISION:
        return 0.5 * unit, unit
    if words & _ZERO_BY_CHANCE:
        return 0.0, 1.0
    if not len(shares) or words & _REGRESSION:
        return None
    best_of = next((int(w[3:]) for w in words if w.startswith("top") and w[3:].isdigit()), 0)
    right = float(np.sort(shares)[::-1][: max(best_of, 1)].sum())
    if words & _ERRORS:
        return unit * (1 - right), 0.0
    if words & {"accuracy", "acc"} or best_of:
        return unit * right, unit
    entropy = -float(np.sum(shares[shares > 0] * np.log(shares[shares > 0])))
    if words & {"perplexity", "ppl"}:
        return math.exp(entropy), 1.0
    return (entropy, 0.0) if words & _ENTROPY else None


def _guess(study: Study, value: float, perfect: float, examples: float) -> Guess:
    """Return a guess whose error is the sampling error of a share over the examples; for a loss it is almost zero."""
    unit = unit_of_shares(study)
    share, words = value / unit, set(words_of(study.spec.objective.metric))
    counted = perfect in (1.0, 100.0) or (bool(words & _ERRORS) and not words & _REGRESSION)
    error = unit * math.sqrt(share * (1 - share) / examples) if counted and examples > 0 and 0 < share < 1 else 0.0
    right = abs(value - (0.0 if perfect else unit)) if counted else math.nan
    phrase = say("guessing, which scores {value}", value=Objective(value))
    return Guess(_cost(study, value), _cost(study, perfect), error, phrase, right=right)


def _constant(study: Study, trials: Sequence[Trial]) -> Guess | None:
    """Return the best share at which two or more trials are constant after their first evaluation: they give only one answer.

    Their training data must show the same, or their training loss must not fall: a small validation set may be constant anyway.
    """
    costs = []
    for trial in trials:
        cost, twin = _constant_value(study.cost_curve(trial)), study.curve(trial, "train_objective")
        dead = (
            0 < abs(_constant_value(twin)) < 1
            if len(twin)
            else training(study, trial) is not None and not learned(study, trial)
        )
        if math.isfinite(cost) and dead:
            costs.append(cost)
    if len(costs) < 2 or max(abs(c) for c in costs) > 1:
        return None
    value, perfect = study.objective_value(min(costs)), 0.0 if study.minimize else 1.0
    phrase = say("{value}, at which {n} trials are constant", value=Objective(value), n=len(costs))
    return Guess(min(costs), _cost(study, perfect), 0.0, phrase)


def _one_answer(study: Study, trials: Sequence[Trial]) -> Guess | None:
    """Return the best share of the trials' answers if each evaluation scores the share of one class: they give only one answer.

    The shares of different classes repeat and sum to at most 1. The training loss must not end below the loss of such answers.
    """
    counts: Counter[float] = Counter()
    silent, best = 0, math.inf
    for trial in trials:
        costs = study.cost_curve(trial).finite.values[1:]
        shares = (1 - costs if study.minimize else -costs).round(6)  # float32
        if len(shares) and shares.min() > 0 and shares.max() < 1 and not _beats(study, trial, float(shares.max())):
            counts.update(shares.tolist())
            silent, best = silent + 1, min(best, float(costs.min()))
    if silent < max(2, len(trials) / 2) or sum(counts) > 1.001 or counts.total() < _REPEATED * len(counts):
        return None
    best_value = Objective(study.objective_value(best))
    phrase = say("one answer for all examples, which scores {value} at best", value=best_value)
    return Guess(best, _cost(study, 0.0 if study.minimize else 1.0), 0.0, phrase, right=max(counts))


def _beats(study: Study, trial: Trial, share: float) -> bool:
    """Return True if the trial's training loss is unknown, or if it ends below the entropy of a class with this share."""
    loss = training(study, trial)
    if loss is None or not set(words_of(loss[0])) & _ENTROPY:
        return True
    end = loss[1].values[-max(MIN_POINTS, len(loss[1]) // 10) :]
    return bool(np.median(end) < -math.log(share))


def _constant_value(curve: Curve) -> float:
    """Return the exact value at which the curve is constant after its first point; NaN if it changes or is too short."""
    values = curve.finite.values[1:]
    if len(values) < MIN_POINTS:
        return math.nan
    usual = float(np.median(values))
    return usual if float(np.mean(values == usual)) >= _CONSTANT else math.nan


# --- the first evaluation if no level is known ------------------------------------------------------------------------------------


def _first(study: Study, trial: Trial, usual: tuple[float, float]) -> Guess | None:
    """Return the trial's first evaluation, or the usual one if better; None if the trial may have learned before it."""
    curve = study.cost_curve(trial).finite
    if len(curve) < 2:
        return None
    scatter = noise(curve.values[1:])
    own = float(curve.values[0]), scatter if math.isfinite(scatter) else 0.0
    cost, error = min(own, usual)
    perfect = _cost(study, _perfect(study, study.objective_value(cost)))
    phrase = say("its first evaluation, which is {value}", value=Objective(study.objective_value(cost)))
    guess = Guess(cost, perfect, error, phrase, known=False)
    before = curve.steps[0] <= 0 and curve.steps[1] - curve.steps[0] >= _MIN_INTERVAL
    if before or _skill(study, trial, guess).above(MATERIAL, 0.05):
        return guess
    return guess if training(study, trial) is not None and not learned(study, trial) else None


def _usual_start(study: Study, trials: Sequence[Trial]) -> tuple[float, float]:
    """Return (median cost of the trials' first evaluations, its standard error); infinite without any."""
    firsts = np.array([c.values[0] for t in trials if len(c := study.cost_curve(t).finite)])
    if not len(firsts):
        return math.inf, 0.0
    middle = float(np.median(firsts))
    spread = float(np.median(np.abs(firsts - middle))) / 0.6745
    return middle, math.sqrt(math.pi / 2 / len(firsts)) * spread


def training(study: Study, trial: Trial) -> tuple[str, Curve] | None:
    """Return (name, curve) of a training loss logged as early as the first evaluation; None without one."""
    first = study.cost_curve(trial).finite.steps[:1]
    for signal in _TRAINING:
        curve = study.curve(trial, signal).finite
        if len(curve) >= MIN_POINTS and len(first) and curve.steps[0] <= first[0]:
            return study.signals[signal], curve
    return None


def learned(study: Study, trial: Trial) -> bool:
    """Return True if the trial's training loss fell materially and beyond noise."""
    loss = training(study, trial)
    fall = point_rise(loss[1].values, 0) if loss else None
    return fall is not None and fall.p <= 0.05 and fall.height > MATERIAL * abs(fall.level)


def _perfect(study: Study, near: float) -> float:
    """Return the perfect objective value: 0 for minimised values that are never negative, 1 for shares; NaN if unknown."""
    costs = study.costs[np.isfinite(study.costs)]
    if study.minimize:
        return 0.0 if near > 0 and costs.min() >= 0 else math.nan
    return 1.0 if 0 <= near <= 1 and costs.min() >= -1 and costs.max() <= 0 else math.nan


def _cost(study: Study, value: float) -> float:
    return value if study.minimize else -value


def _loads(text: str | None) -> Any:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None
