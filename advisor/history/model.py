"""Rounds as data: what each study of a lineage changed and found, and which of its predictions came true."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from advisor.model.frozen import FrozenModel
from advisor.model.prediction import Prediction
from advisor.model.spec import Objective

Judgement = Literal["kept", "not kept", "cannot tell"]


class Outcome(FrozenModel):
    """A prediction and its result."""

    prediction: Prediction
    judged: Judgement
    predicted: str
    """The prediction in words."""
    observed: str
    """The result in words with numbers, or why it is unclear."""


class Round(FrozenModel):
    """One study of a lineage."""

    study: str
    number: int
    goal: str = ""
    trials: int
    feasible: int
    max_train_steps: int | None = None
    best: float | None = None
    """Best value of its own trials; None without a feasible one."""
    best_trial: str | None = None
    incumbent: float | None = None
    """Best value of this round and all before it."""
    changed: tuple[str, ...] = ()
    """Differences from the round before, one phrase each."""
    why: tuple[str, ...] = ()
    """The reasons that its study file gives for the changes."""
    outcomes: tuple[Outcome, ...] = ()
    """The predictions for this round and their results."""
    counted: int = 0
    """Number of its trials that count as data for the latest round; 0 for the latest round itself."""


class HitRate(FrozenModel):
    """How often the predictions of a rule came true."""

    rule: str
    kept: int
    not_kept: int
    cannot_tell: int
    stated: float | None = None
    """Mean stated probability of the judged predictions; None if none was stated."""

    @property
    def rate(self) -> float | None:
        """Share of the judged predictions that were kept; None without one."""
        judged = self.kept + self.not_kept
        return self.kept / judged if judged else None


class History(FrozenModel):
    """The rounds of one lineage, the first one first."""

    objective: Objective
    rounds: tuple[Round, ...]
    said: tuple[str, ...] = ()
    """Notes on earlier rounds, one sentence each: which of their trials count, which do not and why."""
    hit_rates: tuple[HitRate, ...] = ()
    """How often each rule's predictions came true in these rounds."""
    stop: str | None = None
    """Why tuning has stopped paying, and what to do instead; None if it has not."""

    @property
    def counted(self) -> int:
        """Trials of earlier rounds that count as data for the latest one."""
        return sum(r.counted for r in self.rounds)

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """All predictions of all rounds and their results."""
        return tuple(o for r in self.rounds for o in r.outcomes)


def hit_rates(outcomes: Iterable[Outcome]) -> tuple[HitRate, ...]:
    """Return how often predictions came true, by rule in the order of ids."""
    by_rule: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_rule.setdefault(outcome.prediction.rule, []).append(outcome)
    return tuple(_hit_rate(rule, group) for rule, group in sorted(by_rule.items()))


def _hit_rate(rule: str, outcomes: list[Outcome]) -> HitRate:
    judged = [o for o in outcomes if o.judged != "cannot tell"]
    stated = [o.prediction.probability for o in judged if o.prediction.probability is not None]
    return HitRate(
        rule=rule,
        kept=sum(o.judged == "kept" for o in judged),
        not_kept=sum(o.judged == "not kept" for o in judged),
        cannot_tell=len(outcomes) - len(judged),
        stated=round(sum(stated) / len(stated), 3) if stated else None,
    )
