"""Defines data classes for the rounds of a lineage (successive studies): changes, results and outcomes of predictions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from statistics import fmean
from typing import Literal, get_args

from advisor.model.frozen import FrozenModel
from advisor.model.prediction import Prediction
from advisor.model.spec import Objective

Judgement = Literal["kept", "not kept", "cannot tell"]


class Outcome(FrozenModel):
    """A prediction about a study, with its result."""

    prediction: Prediction
    judged: Judgement
    predicted: str
    """The prediction as text."""
    observed: str
    """The observed result in words and numbers, or the reason why the prediction cannot be judged."""


class Round(FrozenModel):
    """One study of a lineage (successive studies)."""

    study: str
    number: int
    goal: str = ""
    trials: int
    feasible: int
    max_train_steps: int | None = None
    best: float | None = None
    """Best objective value of this round's trials, or None if no trial is feasible."""
    best_trial: str | None = None
    incumbent: float | None = None
    """Best objective value over this round and all earlier rounds."""
    changed: tuple[str, ...] = ()
    """Differences between the study files of this round and the previous one, one phrase for each."""
    why: tuple[str, ...] = ()
    """Reasons for the changes of this round, as its study file states them."""
    outcomes: tuple[Outcome, ...] = ()
    """Predictions for this round and their results."""
    counted: int = 0
    """Number of this round's trials that count as data for the latest round. For the latest round itself, the number is 0."""


class HitRate(FrozenModel):
    """Numbers of predictions of one rule that came true, did not come true, or cannot be judged."""

    rule: str
    kept: int
    not_kept: int
    cannot_tell: int
    stated: float | None = None
    """Mean of the probabilities that were stated for the judged predictions, or None if no probability was stated."""

    @property
    def rate(self) -> float | None:
        """Share of the judged predictions that came true, or None if no prediction was judged."""
        judged = self.kept + self.not_kept
        return self.kept / judged if judged else None


class History(FrozenModel):
    """The rounds of one lineage (successive studies), from the first to the latest."""

    objective: Objective
    rounds: tuple[Round, ...]
    said: tuple[str, ...] = ()
    """One sentence for each earlier round, which says how many of the round's trials count as data for the latest round and why
    its other trials do not count."""
    hit_rates: tuple[HitRate, ...] = ()
    """Numbers of predictions of each rule that came true, over the rounds of this lineage."""
    stop: str | None = None
    """Reason why further tuning no longer pays, with advice on what to do instead, or None if tuning still pays."""

    @property
    def counted(self) -> int:
        """Total number of trials of earlier rounds that count as data for the latest round."""
        return sum(r.counted for r in self.rounds)

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """The predictions of all rounds, with their results."""
        return tuple(o for r in self.rounds for o in r.outcomes)


def hit_rates(outcomes: Iterable[Outcome]) -> tuple[HitRate, ...]:
    """Count, for each rule, how many of its predictions came true; sorted by rule id."""
    by_rule: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_rule.setdefault(outcome.prediction.rule, []).append(outcome)
    rates = []
    for rule, of_rule in sorted(by_rule.items()):
        counts = Counter(o.judged for o in of_rule)
        judged = [o.prediction for o in of_rule if o.judged != "cannot tell"]
        stated = [p.probability for p in judged if p.probability is not None]
        mean = round(fmean(stated), 3) if stated else None
        kept, not_kept, cannot_tell = (counts[judgement] for judgement in get_args(Judgement))
        rates.append(HitRate(rule=rule, kept=kept, not_kept=not_kept, cannot_tell=cannot_tell, stated=mean))
    return tuple(rates)
