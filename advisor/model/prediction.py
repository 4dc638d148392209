"""Predictions about the next study. Its file stores them; `advisor.history.judge` judges them once its trials have ended.

A prediction holds all numbers to judge it, so the earlier study is not needed. Values are in the objective's own direction.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from advisor.model.frozen import FrozenModel

Part = Annotated[float, Field(ge=0, le=1)]


class _Finite(FrozenModel):
    model_config = ConfigDict(allow_inf_nan=False)


class BestBeyond(_Finite):
    """The best trial lies beyond the old end of a range, and is better than the best inside."""

    kind: Literal["best-beyond"] = "best-beyond"
    parameter: str
    side: Literal["low", "high"]
    end: float
    """The old end of the range."""
    than: float | None = None
    """Best value so far; None if the study changes more than the space, so only its own trials are compared."""
    noise: float = 0.0
    """Standard deviation of one result between seeds, if known: a smaller lead decides nothing."""


class BestReaches(_Finite):
    """The best value is at least as good as `value`."""

    kind: Literal["best-reaches"] = "best-reaches"
    value: float
    expected: float | None = None
    """The most likely value."""
    than: float
    """Best value so far."""


class ShareOfTrials(_Finite):
    """The share of ended trials of one kind stays on one side of a bound."""

    kind: Literal["share"] = "share"
    of: Literal["failed", "better"]
    """failed: diverged, crashed or learned nothing · better: at least as good as `value`."""
    value: float | None = None
    at_most: Part | None = None
    at_least: Part | None = None
    was: Part
    """The share in the study behind the prediction."""


class SpreadWithin(_Finite):
    """The standard deviation between repeats of one setting with other seeds lies between `low` and `high`."""

    kind: Literal["spread"] = "spread"
    low: float
    high: float | None = None


class Settled(_Finite):
    """The rule no longer finds the same problem."""

    kind: Literal["settled"] = "settled"
    side: Literal["low", "high"] | None = None
    was: str
    """The earlier finding."""


Expected = Annotated[
    BestBeyond | BestReaches | ShareOfTrials | SpreadWithin | Settled,
    Field(discriminator="kind"),
]


class Prediction(_Finite):
    """The predicted effect of one rule's advice on one study."""

    rule: str
    subject: str | None = None
    """The hyperparameter or metric that the advice is about."""
    expects: Expected
    probability: Part | None = None
    """Probability that it comes true, if known."""


def significant(value: float, digits: int = 4) -> float:
    """Return the value with this many significant digits: a prediction is no more exact than that."""
    return float(f"{value:.{digits}g}")


__all__ = [
    "BestBeyond",
    "BestReaches",
    "Expected",
    "Prediction",
    "Settled",
    "ShareOfTrials",
    "SpreadWithin",
    "significant",
]
