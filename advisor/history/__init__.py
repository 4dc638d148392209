"""The history of a study: its earlier rounds, the predictions for each round, and the earlier trials that still count.

`predict` writes predictions into the next study files, and `judge` compares them with the results. `rounds` combines both. `pool`
finds the earlier trials that lie in the latest search space. All of these modules are pure functions of studies.
"""

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
    "history",
    "hit_rates",
    "pool",
    "predicted",
]
