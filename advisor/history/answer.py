"""Defines the gate's answer to a proposed change (keep, discard or run more), and expresses parts of the answer in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from advisor.history.fairness import BudgetExcess, Limit
from advisor.history.proposals import Decision
from advisor.model.frozen import FrozenModel
from advisor.model.words import count, listed, number, plain_number, shorten

MAX_NAME = 80
"""Maximum number of characters of a name from the tracking store in an answer."""


class Side(FrozenModel):
    """One side of the comparison: the candidate or the incumbent."""

    name: str
    run: str
    """Id of the setting's first run."""
    commit: str = ""
    runs: int
    """Number of runs with a result, one per seed."""
    failed: int = 0
    running: int = 0
    value: float | None = None
    """Mean of the objective over the runs with a result."""


class MoreRuns(FrozenModel):
    """Further runs of one setting that the gate asks for."""

    setting: str
    run: str
    """Id of a run with this setting."""
    runs: int
    seeds: tuple[int, ...] = ()
    """Seeds for the further runs; empty if no run so far logged its seed."""
    steps: float | None = None
    hours: float | None = None


class Answer(FrozenModel):
    """The gate's answer. The field `action` comes first, because a caller may read only the first field."""

    schema_version: Literal[1] = 1
    action: str
    decision: Decision
    reason: str
    run: tuple[MoreRuns, ...] = ()
    """Further runs that can decide if the candidate is kept; ask the gate again after each run."""
    candidate: Side
    incumbent: Side
    incumbent_is: str
    """Reason for the choice of the incumbent."""
    metric: str
    direction: str
    gain: float | None = None
    """Improvement of the candidate over the incumbent, in units of the objective."""
    interval: tuple[float, float] | None = None
    """Interval that contains the true gain with 95 % probability, even if the gate is asked repeatedly; None if the interval is
    infinite.
    """
    noise: float | None = None
    """Standard deviation of the objective between seeds, pooled over all repeated settings."""
    noise_freedom: int | None = None
    worthwhile: float | None = None
    chance: float | None = None
    """Posterior probability that the gain is worthwhile, given the runs of both settings and a flat prior."""
    evidence_to_keep: float | None = None
    """Strength of the evidence for a gain; the gate keeps the candidate only if the value is 1 or more."""
    evidence_to_discard: float | None = None
    question: int | None = None
    """Position of the candidate among the settings of the experiment, counted from 1."""
    kept_before: int | None = None
    """Number of other settings that the gate has kept so far; None if the answer needed no test."""
    looks: int = 1
    """Number of times this candidate was tested, including this test."""
    kept_at: float | None = None
    """Time of the earlier answer that kept the candidate, in seconds since 1970; None if no earlier answer kept it."""
    kept_against: str = ""
    """Id of a run of the setting that the candidate replaced when it was kept; empty if it was never kept."""
    tags: tuple[str, ...] = ()
    """Names of the tags that, in addition to hyperparameters and commit, distinguish settings."""
    recorded: bool = False
    """True if the answer was recorded in the tracking store."""
    budget: tuple[BudgetExcess, ...] = ()
    limits: tuple[Limit, ...] = ()
    changed: tuple[str, ...] = ()
    """Differences between the candidate's and the incumbent's setting, one phrase each."""
    notes: tuple[str, ...] = ()

    @property
    def exit_status(self) -> int:
        """Exit status of the command."""
        return {"keep": 0, "discard": 1, "not decided": 3}[self.decision]


def quote_name(name: str) -> str:
    """Return a shortened name for use in a sentence, in quotation marks if it has several words."""
    text = shorten(name)
    return f'"{text.replace(chr(34), chr(39))}"' if " " in text else text


def runs_in_words(addition: MoreRuns) -> str:
    """Return text such as "2 more seeds of wide (seeds 1 and 2)", in which "wide" is the name of a run."""
    seeds = (
        f" ({'seed' if len(addition.seeds) == 1 else 'seeds'} {listed(map(str, addition.seeds), limit=8)})"
        if addition.seeds
        else ""
    )
    return f"{count(addition.runs, 'more seed')} of {quote_name(addition.setting)}{seeds}"


def cost_in_words(additions: Sequence[MoreRuns]) -> str:
    """Return the cost of all further runs as text that starts with a colon; empty if the cost is unknown."""
    steps = sum(m.steps for m in additions if m.steps is not None)
    hours = sum(m.hours for m in additions if m.hours is not None)
    parts = [f"{steps:,.0f} steps"] if steps else []
    parts += [f"{number(hours, 2)} hours"] if hours >= 0.1 else [f"{number(3600 * hours, 2)} seconds"] if hours else []
    return f": {', '.join(parts)}" if parts else ""


def limit_in_words(limit: Limit) -> str:
    """Return text about a violated limit on a metric, with the candidate's value of the metric."""
    bound = f"at most {number(limit.at_most)}" if limit.at_most is not None else f"at least {number(limit.at_least)}"
    value = f"is {number(limit.value)}" if limit.value is not None else "was not logged by it"
    return f"the limit on {quote_name(limit.metric)}: {bound}, and it {value}"


def excess_in_words(excess: BudgetExcess) -> str:
    """Return text that compares the candidate's and the incumbent's budget, such as "800 steps against 400"."""
    return f"{number(excess.candidate, 3)} {excess.kind} against {number(excess.incumbent, 3)}"


def percent_text(share: float) -> str:
    """Return a probability as text, never as 0 % or 100 %."""
    return f"{plain_number(100 * min(max(share, 0.001), 0.999), 3)} %"
