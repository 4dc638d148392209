"""Implements the rule `objective-varies`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.contract.metric_direction import quantity_words, split_of_metric
from advisor.engine.rule import Count, Relation, Rule, Share
from advisor.model.change import Advise
from advisor.model.evidence import table
from advisor.model.finding import Finding, MissingData, require_searched_hyperparameters
from advisor.model.message import Message, Name, Number, list_message, say
from advisor.model.space import FloatArray, as_number, words_of_name
from advisor.model.study import Study, Trial

_IDENTITY_CONFIDENCE = 0.95
"""Confidence if the sum explains the objective; below 1, because the user may search the weights on purpose."""
_NAME_CONFIDENCE = 0.8
"""Confidence if only the hyperparameter's name shows that it is part of the loss."""
_MIN_POINTS_PER_COEFFICIENT = 10
"""Minimum number of evaluations per fitted coefficient. With 10, noise cannot fit the objective to `rounding`."""
_MAX_HYPERPARAMETERS = 6
"""Maximum number of searched hyperparameters to fit as weights."""
_MAX_TRIALS, _MAX_EVALUATIONS = 500, 20_000
"""Maximum numbers of trials and of evaluations to compare; in larger studies, they are taken at equal intervals."""
_LOSS_WORDS = frozenset("loss contrastive infonce nce ntxent".split())
_PART_WORDS = _LOSS_WORDS | frozenset("kl kld recon reconstruction nll bce ce mse mae penalty".split())
_TEMPERATURE_WORDS = frozenset(("temperature", "temp"))
_WEIGHT_ACTION = (
    "Compare trials by a sum of {parts} with the same weights in all trials, or by another metric that does not depend on "
    "{name}."
)
_NAME_ACTION = "Compare trials by a metric that does not depend on {name}, such as {example}."


@dataclass(frozen=True, slots=True)
class _WeightedSum:
    """The objective, written as a weighted sum of other metrics whose weights depend on hyperparameters."""

    metrics: tuple[str, ...]
    weights: tuple[str, ...]
    """Hyperparameters on which the weights depend."""
    points: int
    remainder: float
    """Standard deviation of the remainder, as a share of that of the objective."""
    remainder_with_fixed_weights: float


class ObjectiveVaries(Rule):
    """A searched hyperparameter is part of the objective, so trials are measured on different scales.

    ## What it looks at
    The rule compares the objective with the other metrics that were logged at the same steps of the same data split, such as
    the reconstruction and the KL divergence of a variational autoencoder, or the losses of several tasks. The rule fires if the
    objective is a weighted sum of these metrics, up to rounding, in all evaluations of all trials, but only if the weights
    depend on a searched hyperparameter (proportionally, or as its difference to 1). In large studies, 500 trials and 20,000
    evaluations are compared. If the metrics show no such sum, the rule fires for two hyperparameters that are part of a loss by
    definition: those of a focal loss, and the temperature in self-supervised training.

    ## Why it matters
    The best value of such an objective belongs to the weights that make the sum small, not to the best model. Beta of a
    variational autoencoder always has its lowest loss at 0, a weight between two tasks at the task with the smaller loss, and
    the gamma of a focal loss at its highest value. The other hyperparameters are ranked by a mixture of their own effect and
    the effect of the weights.

    ## What to do
    Compare the trials by a metric that is defined equally in all trials: one part of the sum, the sum with fixed weights, an
    accuracy, or the score of a probe on the learned features. If such a metric was logged, analyze it with `--objective`.

    ## How sure
    A sum that holds in all evaluations up to a thousandth of the objective's standard deviation does not occur by chance: the
    rule needs 10 evaluations per fitted coefficient and at least three settings. It is quiet if weights that do not depend on
    the hyperparameter explain the objective to a hundredth, because the effect on the ranking is then small. In simulated
    studies with independent metrics the rule never fired. For names alone, the confidence is 0.8, because an evaluation may use
    another loss than the training.
    """

    playbook = "Identifying scientific, nuisance, and fixed hyperparameters"
    goal = "pipeline"
    explains = Relation(
        rules=(
            "space-boundary",
            "space-shrink",
            "space-interaction",
            "space-undersampled",
            "space-insensitive",
            "space-scale",
            "scientific-effect",
            "unfair-comparison",
            "tuning-saturated",
            "adopt",
            "curve-step-variance",
            "eval-size",
        ),
        shares="study",
        because="The objective is a different quantity in each trial, so the ranking of the trials says little about their models.",
    )

    metrics: Count = 6
    """Maximum number of metrics of which the objective can be a sum. Our choice."""
    rounding: Share = 0.001
    """Maximum standard deviation of the remainder of a sum, as a share of the objective's standard deviation: metrics are often
    logged with four digits."""
    effect: Share = 0.01
    """Minimum standard deviation of the remainder with weights that do not depend on the hyperparameter, as a share of the
    objective's standard deviation. Our choice."""

    def check(self, study: Study) -> Iterator[Finding]:
        require_searched_hyperparameters(study)
        trials = [t for t in study.ranked() if len(study.cost_curve(t).finite)]
        if len(trials) < 2:
            raise MissingData("fewer than two trials ended with a finite objective", needs="trials", at_least=2)
        total = self._find_weighted_sum(study, trials)
        if total is not None:
            yield self._report_sum(study, trials, total)
        elif (by_name := _part_of_loss_by_name(study)) is not None:
            yield self._report_name(study, trials, *by_name)

    def _find_weighted_sum(self, study: Study, trials: Sequence[Trial]) -> _WeightedSum | None:
        evaluations = _read_evaluations(study, trials, self.metrics)
        names = list(evaluations.settings)[:_MAX_HYPERPARAMETERS]
        candidates = [[name] for name in names] + ([names] if len(names) > 1 else [])
        sums = (self._fit_sum(evaluations, candidate) for candidate in candidates)
        return next((total for total in sums if total is not None), None)

    def _fit_sum(self, data: _Evaluations, weights: Sequence[str]) -> _WeightedSum | None:
        """Return the weighted sum whose weights depend on these hyperparameters; None if there is none, or if some weights are
        positive and some negative. In the latter case, the objective is a part of another metric, not a sum."""
        parts, points = list(data.parts), len(data.objective)
        scale = float(np.std(data.objective)) if points else 0.0
        if not parts or not scale > 0 or points < _MIN_POINTS_PER_COEFFICIENT * len(parts) * (1 + len(weights)):
            return None
        # Any hyperparameter fits weights that were used in only one or two settings.
        if data.setting_count < len(weights) + 2 or data.remainder(parts, weights) > self.rounding * scale:
            return None
        for part in parts.copy():
            others = [p for p in parts if p != part]
            if others and data.remainder(others, weights) <= self.rounding * scale:
                parts = others
        needed = [n for n in weights if data.remainder(parts, [m for m in weights if m != n]) > self.effect * scale]
        fixed = data.remainder(list(data.parts), []) / scale
        if not needed or fixed <= self.effect or data.remainder(parts, needed) > self.rounding * scale:
            return None
        contributions = data.contributions(parts, needed)
        if contributions.min() < -self.rounding * scale and contributions.max() > self.rounding * scale:
            return None
        return _WeightedSum(tuple(parts), tuple(needed), points, data.remainder(parts, needed) / scale, fixed)

    def _report_sum(self, study: Study, trials: Sequence[Trial], total: _WeightedSum) -> Finding:
        text = (
            "{metric} is a weighted sum of {parts}, and its weights depend on {names}, which {differ} between the trials. The "
            "weights alone can make {metric} {better}, without a better model."
        )
        parts, names = list_message([Name(m) for m in total.metrics], 4), list_message([Name(n) for n in total.weights], 4)
        message = say(
            text,
            metric=Name(study.spec.objective.metric),
            parts=parts,
            names=names,
            differ="differs" if len(total.weights) == 1 else "differ",
            better="lower" if study.minimize else "higher",
        )
        action = say(_WEIGHT_ACTION, parts=parts, name=names)
        figures = table(
            ("evaluations", total.points),
            ("remainder of the sum, as a share of the objective's standard deviation", Number(total.remainder, 2)),
            ("the same if the weights do not depend on hyperparameters", Number(total.remainder_with_fixed_weights, 2)),
        )
        return self.finding(
            message,
            action=action,
            severity="critical",
            confidence=_IDENTITY_CONFIDENCE,
            subject=study.spec.objective.metric,
            trials=trials,
            evidence=figures,
            changes=(Advise(text=str(action), new_scores=True),),
        )

    def _report_name(self, study: Study, trials: Sequence[Trial], name: str, example: str) -> Finding:
        text = (
            "{name} differs between the trials and is part of the loss by its name, so {metric} is probably a different quantity "
            "in each trial."
        )
        action: Message = say(_NAME_ACTION, name=Name(name), example=example)
        return self.finding(
            say(text, name=Name(name), metric=Name(study.spec.objective.metric)),
            action=action,
            severity="critical",
            confidence=_NAME_CONFIDENCE,
            subject=study.spec.objective.metric,
            trials=trials,
            evidence=table(("hyperparameter that is part of the loss", Name(name))),
            changes=(Advise(text=str(action), new_scores=True),),
        )


@dataclass(frozen=True, slots=True)
class _Evaluations:
    """Values at all evaluations of all trials, arrays (n,)."""

    objective: FloatArray
    parts: Mapping[str, FloatArray]
    """Other metrics of the same data split that were logged at each evaluation, without copies of the objective."""
    settings: Mapping[str, FloatArray]
    """Searched hyperparameters that are numbers in every trial."""

    @property
    def setting_count(self) -> int:
        return len(np.unique(np.column_stack(list(self.settings.values())), axis=0)) if self.settings else 0

    def remainder(self, parts: Sequence[str], weights: Sequence[str]) -> float:
        """Return the standard deviation of the objective minus the best sum of the parts, whose weights are linear functions of
        the hyperparameters `weights`."""
        columns, solution = self._fit(parts, weights)
        return float(np.std(self.objective - columns @ solution))

    def contributions(self, parts: Sequence[str], weights: Sequence[str]) -> FloatArray:
        """Return the weight of each part at each evaluation, times the standard deviation of the part, (n, parts)."""
        _, solution = self._fit(parts, weights)
        factors = np.column_stack([np.ones_like(self.objective), *(self.settings[n] for n in weights)])
        coefficients = solution.reshape(len(weights) + 1, len(parts))
        deviations = np.array([np.std(self.parts[p]) for p in parts])
        result: FloatArray = factors @ coefficients * deviations
        return result

    def _fit(self, parts: Sequence[str], weights: Sequence[str]) -> tuple[FloatArray, FloatArray]:
        """Return (columns (n, k), coefficients (k,)): all parts, then all parts times the first hyperparameter, and so on."""
        fixed = np.column_stack([self.parts[p] for p in parts])
        columns = np.column_stack([fixed, *(fixed * self.settings[n][:, None] for n in weights)])
        norms = np.linalg.norm(columns, axis=0)
        norms[norms == 0] = 1.0
        return columns, np.linalg.lstsq(columns / norms, self.objective, rcond=1e-12)[0] / norms


def _read_evaluations(study: Study, trials: Sequence[Trial], limit: int) -> _Evaluations:
    target = study.spec.objective.metric
    trials = trials[:: math.ceil(len(trials) / _MAX_TRIALS)]
    curves = [study.metric(t, target) for t in trials]
    objective = np.concatenate([c.values for c in curves])
    parts: dict[str, FloatArray] = {}
    for name in sorted(study.metrics):
        if name == target or split_of_metric(name) != split_of_metric(target):
            continue
        others = [study.metric(t, name) for t in trials]
        if all(np.array_equal(a.steps, b.steps) for a, b in zip(curves, others, strict=True)):
            parts[name] = np.concatenate([c.values for c in others])
    lengths = [len(c) for c in curves]
    settings = {n: np.repeat([as_number(t.params.get(n)) for t in trials], lengths) for n in study.searched}
    settings = {n: v for n, v in settings.items() if np.isfinite(v).all() and np.ptp(v) > 0}
    usable = np.isfinite(np.column_stack([objective, *parts.values()])).all(axis=1)
    usable &= np.arange(len(usable)) % math.ceil(max(len(usable), 1) / _MAX_EVALUATIONS) == 0
    objective = objective[usable]
    parts = {n: v[usable] for n, v in parts.items()}
    parts = {n: v for n, v in parts.items() if len(v) and np.ptp(v) > 0 and not np.allclose(v, objective, rtol=1e-6, atol=0)}
    return _Evaluations(
        objective, dict(list(parts.items())[:limit]), {n: v[usable] for n, v in list(settings.items())[:_MAX_HYPERPARAMETERS]}
    )


def _part_of_loss_by_name(study: Study) -> tuple[str, str] | None:
    """Return (hyperparameter, example of a metric that does not depend on it) if a searched hyperparameter is part of the
    objective by its name; None otherwise."""
    words = set(quantity_words(study.spec.objective.metric))
    if not words & _LOSS_WORDS:
        return None
    for name in study.searched:
        parameter_words = set(words_of_name(name))
        if "focal" in parameter_words and words <= {"loss", "focal"}:
            return name, "the F1 score or the area under the precision-recall curve"
        if study.kind == "self-supervised" and parameter_words & _TEMPERATURE_WORDS:
            return name, "the accuracy of a linear or nearest-neighbour probe on the features"
    return None
