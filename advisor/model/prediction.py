"""Predictions of the next study by the advice behind it. They are stored in its file and judged once its trials have ended.

A prediction holds all numbers to judge it, so the earlier study is not needed. Values are in the objective's own direction.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Part = Annotated[float, Field(ge=0, le=1)]


class _Expected(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class BestBeyond(_Expected):
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


class BestReaches(_Expected):
    """The best value is at least as good as `value`."""

    kind: Literal["best-reaches"] = "best-reaches"
    value: float
    expected: float | None = None
    """The most likely value."""
    than: float
    """Best value so far."""


class ShareOfTrials(_Expected):
    """The share of ended trials of one kind stays on one side of a bound."""

    kind: Literal["share"] = "share"
    of: Literal["failed", "better"]
    """failed: diverged, crashed or learned nothing · better: at least as good as `value`."""
    value: float | None = None
    at_most: Part | None = None
    at_least: Part | None = None
    was: Part
    """The share in the study behind the prediction."""


class SpreadWithin(_Expected):
    """The standard deviation between repeats of one setting with other seeds lies between `low` and `high`."""

    kind: Literal["spread"] = "spread"
    low: float
    high: float | None = None


class Settled(_Expected):
    """The rule no longer finds the same problem."""

    kind: Literal["settled"] = "settled"
    side: Literal["low", "high"] | None = None
    was: str
    """The earlier finding."""


Expected = Annotated[
    BestBeyond | BestReaches | ShareOfTrials | SpreadWithin | Settled,
    Field(discriminator="kind"),
]


class Prediction(BaseModel):
    """The predicted effect of one rule's advice on one study."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

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
