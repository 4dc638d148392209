"""Rounds: studies that follow from each other, what was predicted of each, and which earlier trials still count.

`predict` writes predictions into the next study files; `judge` compares them with the results; `rounds` puts both together; `pool`
finds the earlier trials that lie in the latest space. All of them are pure functions of studies.
"""

from advisor.history.judge import describe_prediction
from advisor.history.model import History, HitRate, Outcome, Round, hit_rates
from advisor.history.pool import Pooled, pool
from advisor.history.predict import predicted
from advisor.history.rounds import history

__all__ = [
    "History",
    "HitRate",
    "Outcome",
    "Pooled",
    "Round",
    "describe_prediction",
    "history",
    "hit_rates",
    "pool",
    "predicted",
]
