"""Defines the answer to a question about a proposed change (keep, discard or run more seeds), and functions that describe parts
of the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from advisor.history.fairness import BudgetExcess, Limit
from advisor.history.proposals import Decision
from advisor.model.frozen import FrozenModel
from advisor.model.words import count, listed, number, plain_number, shorten

MAX_NAME_CHARS = 80
"""Maximum number of characters of a name that comes from the tracking store and appears in an answer."""


class Side(FrozenModel):
    """The candidate setting or the incumbent setting in a comparison."""

    name: str
    run: str
    """Id of the first run of the setting."""
    commit: str = ""
    runs: int
    """Number of runs with a result, one per seed."""
    failed: int = 0
    running: int = 0
    value: float | None = None
    """Mean of the objective over the runs with a result."""


class MoreRuns(FrozenModel):
    """Further runs of one setting that are needed to decide about a change."""

    setting: str
    run: str
    """Id of a run with the setting."""
    runs: int
    seeds: tuple[int, ...] = ()
    """Seeds for the further runs; empty if no earlier run logged its seed."""
    steps: float | None = None
    hours: float | None = None


class Answer(FrozenModel):
    """The gate's answer. The field `action` comes first, because some callers read only the first field of an answer."""

    schema_version: Literal[1] = 1
    action: str
    decision: Decision
    reason: str
    run: tuple[MoreRuns, ...] = ()
    """Further runs that can decide whether to keep the candidate; ask again after each run."""
    candidate: Side
    incumbent: Side
    incumbent_is: str
    """Reason why the incumbent setting counts as the incumbent."""
    metric: str
    direction: str
    gain: float | None = None
    """Improvement of the candidate over the incumbent, in units of the objective."""
    interval: tuple[float, float] | None = None
    """Interval that contains the true improvement with 95 % probability, however often the question is asked; None if the
    interval is infinite."""
    noise: float | None = None
    """Standard deviation of the objective between seeds, pooled over all repeated settings."""
    noise_freedom: int | None = None
    worthwhile: float | None = None
    chance: float | None = None
    """Posterior probability that the improvement is worthwhile, given the runs of both settings and a flat prior."""
    evidence_to_keep: float | None = None
    """Strength of the evidence for an improvement; the candidate is kept only if the strength is at least 1."""
    evidence_to_discard: float | None = None
    question: int | None = None
    """Position of the candidate among all settings of the experiment, counted from 1."""
    kept_before: int | None = None
    """Number of other settings kept so far; None if the answer needed no test."""
    looks: int = 1
    """Number of tests of the candidate so far, including the present test."""
    kept_at: float | None = None
    """Time of the earlier answer that kept the candidate, in seconds since 1970; None if no earlier answer kept it."""
    kept_against: str = ""
    """Id of a run of the setting that the candidate replaced; empty if the candidate was never kept."""
    tags: tuple[str, ...] = ()
    """Names of the tags that distinguish settings, in addition to hyperparameters and commit."""
    recorded: bool = False
    """True if the tracking store has recorded the answer."""
    budget: tuple[BudgetExcess, ...] = ()
    limits: tuple[Limit, ...] = ()
    changed: tuple[str, ...] = ()
    """Differences between the settings of candidate and incumbent, one phrase for each."""
    notes: tuple[str, ...] = ()

    @property
    def exit_status(self) -> int:
        """Exit status of the command that prints the answer."""
        return {"keep": 0, "discard": 1, "not decided": 3}[self.decision]


def quote_name(name: str) -> str:
    """Return a shortened name for a sentence, in quotation marks if it has several words."""
    text = shorten(name)
    return f'"{text.replace(chr(34), chr(39))}"' if " " in text else text


def describe_further_runs(addition: MoreRuns) -> str:
    """Return text about further runs, such as "2 more seeds of wide (seeds 1 and 2)", where "wide" is the name of a run."""
    seeds = (
        f" ({'seed' if len(addition.seeds) == 1 else 'seeds'} {listed(map(str, addition.seeds), limit=8)})"
        if addition.seeds
        else ""
    )
    return f"{count(addition.runs, 'more seed')} of {quote_name(addition.setting)}{seeds}"


def describe_runs_cost(additions: Sequence[MoreRuns]) -> str:
    """Return the cost of all further runs as text that starts with a colon, or an empty text if the cost is unknown."""
    steps = sum(m.steps for m in additions if m.steps is not None)
    hours = sum(m.hours for m in additions if m.hours is not None)
    parts = [f"{steps:,.0f} steps"] if steps else []
    parts += [f"{number(hours, 2)} hours"] if hours >= 0.1 else [f"{number(3600 * hours, 2)} seconds"] if hours else []
    return f": {', '.join(parts)}" if parts else ""


def describe_violated_limit(limit: Limit) -> str:
    """Return text about a violated limit on a metric, with the metric's value for the candidate."""
    bound = f"at most {number(limit.at_most)}" if limit.at_most is not None else f"at least {number(limit.at_least)}"
    value = f"is {number(limit.value)}" if limit.value is not None else "was not logged"
    return f"the limit on {quote_name(limit.metric)}: {bound}; the value {value}"


def describe_budget_excess(excess: BudgetExcess) -> str:
    """Return text that compares the budgets of candidate and incumbent, such as "800 steps against 400"."""
    return f"{number(excess.candidate, 3)} {excess.kind} against {number(excess.incumbent, 3)}"


def percent_text(share: float) -> str:
    """Return a probability as text, rounded so that it is never 0 % or 100 %."""
    return f"{plain_number(100 * min(max(share, 0.001), 0.999), 3)} %"
