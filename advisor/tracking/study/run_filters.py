"""Writes MLflow filters that select certain runs of an experiment. Messages use these filters to say how to analyse the runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice

from advisor.tracking.runs import Experiment

_MAX_FILTER_IDS = 5
"""Maximum number of runs that a filter lists by their ids."""


def filter_of_runs(experiment: Experiment, members: Collection[int]) -> str | None:
    """Return the shortest filter that selects exactly the runs with the indices `members`; None if no filter does."""
    wanted = frozenset(members)
    # Values and keys with quotes would need escape sequences, which MLflow's filters do not have.
    return next((text for text, runs in _candidate_filters(experiment, wanted) if runs == wanted), None)


def _candidate_filters(experiment: Experiment, wanted: frozenset[int]) -> Iterator[tuple[str, frozenset[int]]]:
    """Yield filters, each with the indices of the runs that it selects."""
    runs = experiment.runs
    for kind in ("params", "tags"):
        logged = [run.params if kind == "params" else run.tags for run in runs]
        first = logged[min(wanted)]
        keys = sorted({k for values in logged for k in values if "`" not in k}, key=lambda k: (len(k), k))
        for key in keys:
            having = frozenset(i for i, values in enumerate(logged) if key in values)
            value = first.get(key)
            if value is not None and "'" not in value and len(value) <= 100 and not key.startswith("mlflow."):
                yield (f"{kind}.{_quote_filter_key(key)} = '{value}'", frozenset(i for i in having if logged[i][key] == value))
        for key in keys:
            having = frozenset(i for i, values in enumerate(logged) if key in values)
            yield f"{kind}.{_quote_filter_key(key)} IS NOT NULL", having
            yield f"{kind}.{_quote_filter_key(key)} IS NULL", frozenset(range(len(runs))) - having
    yield from _start_time_filters(experiment, wanted)
    if len(wanted) <= _MAX_FILTER_IDS:
        names = ", ".join(f"'{runs[i].id}'" for i in sorted(wanted))
        yield f"attributes.run_id IN ({names})", wanted


def _start_time_filters(experiment: Experiment, wanted: frozenset[int]) -> Iterator[tuple[str, frozenset[int]]]:
    """Yield filters by start time in milliseconds. They select all runs before the first unwanted run, or all runs from the
    first wanted run on."""
    starts = [run.started for run in experiment.runs]
    known = [s for s in starts if s is not None]
    if len(known) < len(starts):
        return
    first = min(known[i] for i in wanted)
    after = [s for i, s in enumerate(known) if i not in wanted and s > first]
    bounds = [("<", min(after))] if after else []
    for sign, bound in islice([(">=", first), *bounds], 2):
        chosen = frozenset(i for i, s in enumerate(known) if (s >= bound if sign == ">=" else s < bound))
        yield f"attributes.start_time {sign} {round(1000 * bound)}", chosen


def _quote_filter_key(key: str) -> str:
    return key if key.isidentifier() else f"`{key}`"
