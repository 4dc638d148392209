"""Defines predictions about the next study, which the study file stores and `advisor.history.judge` judges. A prediction
contains every number to judge it by. Objective values have their original sign, even if higher values are better."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import ConfigDict, Field

from advisor.model.frozen import FrozenModel
from advisor.model.words import share, short_text

if TYPE_CHECKING:
    from advisor.model.spec import Objective

UnitShare = Annotated[float, Field(ge=0, le=1)]


_MIN_LEAD_CONFIDENCE = 0.9
"""Minimum confidence that a better trial's lead is not due to its seed, if the standard deviation between seeds is known."""


class _FiniteModel(FrozenModel):
    model_config = ConfigDict(allow_inf_nan=False)


class BestBeyond(_FiniteModel):
    """Prediction that the best trial beyond the old end of a range beats the best trial inside the old range by more than
    noise."""

    kind: Literal["best-beyond"] = "best-beyond"
    parameter: str
    side: Literal["low", "high"]
    end: float
    """End of the range before it was extended."""
    than: float | None = None
    """Best objective value so far, or None if results of the next study are not comparable."""
    noise: float = 0.0
    """Standard deviation of the objective between seeds; 0 if unknown."""

    @property
    def min_lead(self) -> float:
        """Minimum lead of the best trial beyond the old end at which its seed alone is an unlikely explanation."""
        return NormalDist().inv_cdf(_MIN_LEAD_CONFIDENCE) * math.sqrt(2) * self.noise


class BestNear(_FiniteModel):
    """Prediction that the best value of a hyperparameter lies within a factor of a given value, for example of a scaling law's
    value."""

    kind: Literal["best-near"] = "best-near"
    parameter: str
    value: Annotated[float, Field(gt=0)]
    factor: Annotated[float, Field(gt=1)] = 2.0

    @property
    def ends(self) -> tuple[float, float]:
        return self.value / self.factor, self.value * self.factor


class BestReaches(_FiniteModel):
    """Prediction that the best objective value is at least as good as `value`."""

    kind: Literal["best-reaches"] = "best-reaches"
    value: float
    expected: float | None = None
    than: float


class ShareOfTrials(_FiniteModel):
    """Prediction that the share of failed trials, or of good trials, is above or below a bound."""

    kind: Literal["share"] = "share"
    of: Literal["failed", "better"]
    """"failed" (diverged, crashed or learned nothing) or "better" (at least as good as `value`)."""
    value: float | None = None
    at_most: UnitShare | None = None
    at_least: UnitShare | None = None
    was: UnitShare
    """Share of trials of this kind in the earlier study, on which the prediction is based."""


class Settled(_FiniteModel):
    """Prediction that the rule whose advice was followed no longer finds the same problem."""

    kind: Literal["settled"] = "settled"
    side: Literal["low", "high"] | None = None
    was: str | None = None
    """The problem that the rule found in the earlier study; only study files of older versions contain this field."""


Expected = Annotated[BestBeyond | BestNear | BestReaches | ShareOfTrials | Settled, Field(discriminator="kind")]


class Prediction(_FiniteModel):
    """The predicted effect of one rule's advice on one study."""

    rule: str
    subject: str | None = None
    """Hyperparameter or metric that the advice is about."""
    expects: Expected
    probability: UnitShare | None = None
    """Probability that the prediction comes true, if known."""


def round_significant(value: float, digits: int = 4) -> float:
    """Round a predicted value, because predictions are not exact."""
    return float(f"{value:.{digits}g}")


def describe_prediction(prediction: Prediction, objective: Objective) -> str:
    """Return the prediction as one phrase, with its probability if known."""
    chance_text = "" if prediction.probability is None else f", {share(prediction.probability)} likely"
    savings = "; this change saves trials or steps and does not aim at a better value"
    return f"{_describe_expectation(prediction, objective)}{chance_text}{savings * _expects_no_improvement(prediction.expects)}"


def _expects_no_improvement(expectation: Expected) -> bool:
    best_values = (expectation.than, round_significant(expectation.than, 3)) if isinstance(expectation, BestReaches) else ()
    return isinstance(expectation, BestReaches) and expectation.expected in best_values


def _describe_expectation(prediction: Prediction, objective: Objective) -> str:
    expects, metric = prediction.expects, objective.metric
    bound = "at most" if objective.direction == "minimize" else "at least"
    match expects:
        case BestBeyond():
            lead_text = f" by more than {short_text(round_significant(expects.min_lead, 2))}" if expects.min_lead > 0 else ""
            than_text = "" if expects.than is None else f", with {metric} better than {short_text(expects.than)}{lead_text}"
            relation = "above" if expects.side == "high" else "below"
            return f"the best trial has {expects.parameter} {relation} {short_text(expects.end)}{than_text}"
        case BestNear():
            low, high = map(short_text, expects.ends)
            return f"the best trial has {expects.parameter} from {low} to {high}, near {short_text(expects.value)}"
        case BestReaches():
            no_estimate = expects.expected is None or _expects_no_improvement(expects)
            estimate = "" if no_estimate else f", most likely {short_text(expects.expected)}"
            return f"the best {metric} is {bound} {short_text(expects.value)}{estimate} (it was {short_text(expects.than)})"
        case ShareOfTrials():
            predicate = "fail" if expects.of == "failed" else f"have {metric} of {bound} {short_text(expects.value)}"
            side, part = ("at most", expects.at_most) if expects.at_most is not None else ("at least", expects.at_least)
            return f"{side} {share(part or 0.0)} of the trials {predicate} (it was {share(expects.was)})"
    return f"{prediction.rule} does not find this problem again"
