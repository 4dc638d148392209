"""What advice predicts of the study that follows it: data, written into that study's file and judged once its trials have ended.

A prediction holds the numbers that it is judged by, so that nothing of the study that it was made from is needed then. Values are
of the objective, in its own direction.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Part = Annotated[float, Field(ge=0, le=1)]


class _Expected(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class BestBeyond(_Expected):
    """The best trial lies beyond an old end of a range, and is better than what was found inside."""

    kind: Literal["best-beyond"] = "best-beyond"
    parameter: str
    side: Literal["low", "high"]
    end: float
    """The old end."""
    than: float | None = None
    """Best value so far; None where the study changes more than the space, so that only its own trials are compared."""
    noise: float = 0.0
    """Standard deviation of one result by luck, as far as it was known: a smaller lead decides nothing."""


class BestReaches(_Expected):
    """The best value is at least as good as this one."""

    kind: Literal["best-reaches"] = "best-reaches"
    value: float
    expected: float | None = None
    """The most likely value."""
    than: float
    """Best value so far."""


class ShareOfTrials(_Expected):
    """The share of the ended trials of which something holds stays on one side of a bound."""

    kind: Literal["share"] = "share"
    of: Literal["failed", "better"]
    """failed: diverged, crashed or learned nothing · better: at least as good as `value`."""
    value: float | None = None
    at_most: Part | None = None
    at_least: Part | None = None
    was: Part
    """The share in the study that the prediction was made from."""


class SpreadWithin(_Expected):
    """The standard deviation between repeats of one setting with other seeds lies between these."""

    kind: Literal["spread"] = "spread"
    low: float
    high: float | None = None


class Settled(_Expected):
    """The rule, asked again, finds nothing of the kind."""

    kind: Literal["settled"] = "settled"
    side: Literal["low", "high"] | None = None
    was: str
    """What it had found."""


Expected = Annotated[
    BestBeyond | BestReaches | ShareOfTrials | SpreadWithin | Settled,
    Field(discriminator="kind"),
]


class Prediction(BaseModel):
    """What the advice of one rule is to bring in one study."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    rule: str
    subject: str | None = None
    """The hyperparameter or metric that the advice is about."""
    expects: Expected
    probability: Part | None = None
    """How likely it is to come true, as far as that can be said."""


def significant(value: float, digits: int = 4) -> float:
    """The value with so many significant digits: what is predicted is no surer than that."""
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
