"""Rounds: the studies that follow from each other, what each was predicted to show, and which earlier trials still count.

predict -> (a study file) -> judge -> rounds; pool finds the earlier trials that lie in the latest space. Pure functions of studies.
"""

from advisor.history.judge import in_words
from advisor.history.model import History, HitRate, Outcome, Round, hit_rates
from advisor.history.pool import Pooled, pool
from advisor.history.predict import predicted
from advisor.history.rounds import history

__all__ = ["History", "HitRate", "Outcome", "Pooled", "Round", "history", "hit_rates", "in_words", "pool", "predicted"]
