"""Converts the results of evaluations to values that can be logged, and warns if the objective is missing."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping

from advisor.contract.metric_direction import SPLIT_BY_WORD, words_of_metric
from advisor_logging.limits import clean_text
from advisor_pytorch.steps.device import ScalarValue, logged_value
from advisor_pytorch.validation import is_mlflow_name

MAX_EVALUATIONS_WITHOUT_OBJECTIVE = 3
"""A warning is logged if `MAX_EVALUATIONS_WITHOUT_OBJECTIVE` evaluations do not contain the objective. A single evaluation is
not enough for a warning, because frameworks may evaluate in several parts."""
RefuseMetricFunction = Callable[[str, Exception], None]
"""Function that receives the name of a metric that cannot be logged, and the error."""


def check_metrics(metrics: Mapping[str, object], refuse: RefuseMetricFunction) -> dict[str, ScalarValue]:
    """Return the metrics that can be logged, as numbers or as scalar tensors on their devices. Call `refuse` for each metric
    that cannot be logged.

    Raises TypeError if `metrics` is not a mapping.
    """
    if not isinstance(metrics, Mapping):
        raise TypeError(f"metrics must be a mapping of names to values, not {type(metrics).__name__}")
    return {name: number for name, value in metrics.items() if (number := _loggable_value(name, value, refuse)) is not None}


def _loggable_value(name: str, value: object, refuse: RefuseMetricFunction) -> ScalarValue | None:
    try:
        if not is_mlflow_name(name):
            raise ValueError("MLflow accepts letters, digits and _ - . : / in a name")
        return logged_value(value)  # type: ignore[arg-type]  # raises for other types
    except Exception as error:
        refuse(clean_text(name), error)
        return None


class MissingObjective:
    """Logs one warning if the first evaluations do not contain the objective, for example because its name is misspelt."""

    def __init__(self, objective: str, warn: Callable[[str, str], None]) -> None:
        """warn: function that logs a one-line warning, once per key."""
        self._objective, self._warn = objective, warn
        self._evaluations, self._seen = 0, False
        self._others: set[str] = set()

    def note_metrics(self, metrics: Iterable[str]) -> None:
        """Note the names of the metrics in an evaluation; an evaluation that contains only training metrics does not count."""
        if self._seen or self._evaluations >= MAX_EVALUATIONS_WITHOUT_OBJECTIVE:
            return
        names = set(metrics)
        self._seen = self._objective in names
        if self._seen or all((any((SPLIT_BY_WORD.get(word) == "train" for word in words_of_metric(name)))) for name in names):
            return
        self._others |= names
        self._evaluations += 1
        if self._evaluations == MAX_EVALUATIONS_WITHOUT_OBJECTIVE:
            near = difflib.get_close_matches(self._objective, self._others, n=1)
            hint = f"; did you mean objective={near[0]!r}?" if near else ""
            self._warn(
                "objective",
                f"the first {MAX_EVALUATIONS_WITHOUT_OBJECTIVE} evaluations lack the objective {self._objective!r}; they contain "
                f"{', '.join(sorted(self._others)[:5])}{hint}",
            )
