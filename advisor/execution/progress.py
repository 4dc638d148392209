"""Describes the progress of a launch in lines of text, for output to a log file instead of a terminal."""

from __future__ import annotations

from advisor.execution.job import Key, job_name
from advisor.execution.plan import Summary


class EndedRunLines:
    """Produces a line of text for each run that ended with a result. Failed runs are reported elsewhere."""

    def __init__(self, metric: str, first_seed: int) -> None:
        self._metric, self._seed = metric, first_seed
        self._known: set[Key] | None = None

    def new_lines(self, summary: Summary) -> list[str]:
        """Return one line for each run that has ended with a result since the last call. Runs that ended before the first call
        get no line."""
        before, self._known = self._known, set(summary.outcomes)
        if before is None:
            return []
        places = ((place, key) for place, key in enumerate(summary.outcomes, start=1) if key not in before)
        return [self._trial_line(summary, key, place) for place, key in places if summary.outcomes[key].status == "complete"]

    def _trial_line(self, summary: Summary, key: Key, place: int) -> str:
        outcome, best = summary.outcomes[key], summary.best
        value = "complete" if outcome.best is None else f"{self._metric} {outcome.best:.3g}"
        leads = "" if best is None or best[1] == outcome.best else f" (best {best[1]:.3g}, {job_name(best[0], self._seed)})"
        return f"{place} of {summary.total}: {job_name(key, self._seed)}, {value}{leads}"
