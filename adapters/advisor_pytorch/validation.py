"""Checks the user's arguments and logged values, and converts them to values that MLflow accepts."""

from __future__ import annotations

import contextlib
import difflib
import operator
import os
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from advisor.contract import TAG_PREFIX, metric_direction
from advisor.contract.redact import denotes_secret, one_line_error
from advisor_logging.limits import MAX_EXACT_STEP, clean_text
from advisor_pytorch.steps.device import ScalarValue, logged_value

_BETTER_VALUES_BY_NAME = {"minimize": "higher", "maximize": "lower"}
"""Values that are better according to an objective name that contradicts the direction."""
_MLFLOW_NAME_PATTERN = re.compile(r"[/\w.\- :]{1,250}")


def is_mlflow_name(name: object) -> bool:
    """Letters, digits, `_ - . : /` and spaces are allowed, but no paths like `..`."""
    if not isinstance(name, str) or not _MLFLOW_NAME_PATTERN.fullmatch(name):
        return False
    return posixpath.normpath(name) == name and name != "." and not name.startswith(("..", "/"))


def check_training(model: object, optimizers: Sequence[object]) -> None:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    if not optimizers:
        raise ValueError(
            "optimizer must be an optimizer, or a sequence of optimizers with the main one first; the sequence is empty"
        )
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"optimizer must be a torch.optim.Optimizer, not {type(optimizer).__name__}")


def check_objective(params: object, objective: object, direction: object) -> metric_direction.Direction:
    """Return the direction in which the objective is optimised: `direction`, or by default the direction that the objective's
    name implies.

    Raises TypeError or ValueError if the hyperparameters or the objective cannot be logged unchanged, or if the direction is
    unknown or contradicts the objective's name.
    """
    if not isinstance(params, Mapping):
        raise TypeError(f"params must be a mapping of names to values, such as vars(args), not {type(params).__name__}")
    invalid_names = [name for name in params if not is_mlflow_name(name)]
    if invalid_names:
        raise ValueError(
            f"MLflow does not accept {invalid_names[0]!r} as the name of a parameter: use letters, digits and _ - . : /"
        )
    if not isinstance(objective, str) or not is_mlflow_name(objective):
        raise ValueError(f"MLflow does not accept {objective!r} as the name of a metric: use letters, digits and _ - . : /")
    if direction is None:
        inferred = metric_direction.direction_of_metric(objective)
        if inferred is None:
            raise ValueError(
                f'the name {objective!r} does not say whether lower or higher values are better: pass direction="minimize" or '
                'direction="maximize"'
            )
        return inferred
    if direction not in ("minimize", "maximize"):
        raise ValueError(f'direction must be "minimize" or "maximize", not {direction!r}')
    checked: metric_direction.Direction = "minimize" if direction == "minimize" else "maximize"
    if metric_direction.contradicts_direction(objective, checked):
        raise ValueError(
            f"direction={direction!r} contradicts the name of the objective {objective!r}, whose "
            f"{_BETTER_VALUES_BY_NAME[checked]} values are better: leave direction out, or rename the metric"
        )
    return checked


def check_count(name: str, value: object, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, not {value!r}")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, not {value}")


def check_counts(counts: Mapping[str, int | None]) -> None:
    for tag, number in counts.items():
        if number is not None:
            check_count(tag.removeprefix(TAG_PREFIX), number, 1)


def check_modes(guard: object, autopsy: object) -> None:
    if guard not in (None, "warn", "stop"):
        raise ValueError(f'guard must be None, "warn" or "stop", not {guard!r}')
    if not isinstance(autopsy, bool) and autopsy != "batch":
        raise ValueError(f'autopsy must be True, False or "batch", not {autopsy!r}')


def check_step(step: object) -> int:
    """Raises TypeError or ValueError if the step is not an integer from 0 to 2**53."""
    number = operator.index(step)  # type: ignore[arg-type]  # raises for other types
    check_count("step", number, 0)
    if number > MAX_EXACT_STEP:
        raise ValueError(f"step must be at most 2**53, not {number}")
    return number


def count_classes(classes: int | Sequence[str] | None) -> int | None:
    """Return the number of classes; `classes` is this number or a list of class names. Raises TypeError or ValueError if there
    are fewer than 2 classes."""
    if classes is None:
        return None
    number = len(classes) if isinstance(classes, Sequence) and not isinstance(classes, str) else classes
    check_count("classes", number, 2)
    return int(number)


def make_writable_folder(folder: str | os.PathLike[str]) -> None:
    """Raises OSError if this process cannot write files to the folder."""
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise OSError(f"checkpoint_dir {os.fspath(folder)!r} cannot be made: {error.strerror}") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"checkpoint_dir {os.fspath(folder)!r} is not writable")


def plain_params(params: Mapping[str, object]) -> dict[str, str]:
    return {name: "***" if denotes_secret(name) else _plain_text(value) for name, value in params.items()}


def _plain_text(value: object) -> str:
    with contextlib.suppress(Exception):  # the user may have defined the value's class, so its conversion can fail
        item = getattr(value, "item", None)
        value = item() if callable(item) and getattr(value, "shape", None) == () else value
    return clean_text(value)


_IRREGULAR_PLURALS = {"loss": "losses"}
_UNCOUNTED_KIND = "tag"
"""Kind of refused value that does not count as a metric point."""


class RefusedValues:
    """Counts the values of one run that could not be logged."""

    def __init__(self, warn: Callable[[str, str], None]) -> None:
        self._counts: Counter[str] = Counter()
        self._warn = warn

    def count_refusal(self, kind: str, error: Exception) -> None:
        self._counts[kind] += 1
        article = "an" if kind[0] in "aeiou" else "a"
        self._warn(kind, f"{article} {kind} could not be logged ({one_line_error(error)}); training continues")

    def add_metric(self, name: str, error: Exception) -> None:
        self._counts["metric value"] += 1
        self._warn(f"evaluate {name}", f"{name!r} could not be logged ({one_line_error(error)}); training continues")

    def warn_about_total(self, failed_steps: int) -> int:
        """If several values of one kind could not be logged, log one warning with the number of values of each kind. Return the
        number of lost metric points."""
        counts = self._counts + Counter({"step": failed_steps})
        if any(number > 1 for number in counts.values()):
            texts = (f"{n:,} {kind if n == 1 else _IRREGULAR_PLURALS.get(kind, kind + 's')}" for kind, n in counts.items())
            self._warn("sum", f"{', '.join(texts)} could not be logged in this run")
        return counts.total() - counts[_UNCOUNTED_KIND]


MAX_EVALUATIONS_WITHOUT_OBJECTIVE = 3
"""A warning is logged if `MAX_EVALUATIONS_WITHOUT_OBJECTIVE` evaluations do not contain the objective. A single evaluation is
not enough for a warning, because frameworks may evaluate in several parts."""
RefuseMetricFunction = Callable[[str, Exception], None]
"""Function that receives the name of a metric that cannot be logged, and the error."""


def check_metrics(metrics: Mapping[str, object], refuse: RefuseMetricFunction) -> dict[str, ScalarValue]:
    """Return the metrics that can be logged; call `refuse` for each other metric. Raises TypeError if `metrics` is no mapping."""
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
        self._objective, self._warn = objective, warn
        self._evaluations, self._seen = 0, False
        self._others: set[str] = set()

    def note_metrics(self, metrics: Iterable[str]) -> None:
        if self._seen or self._evaluations >= MAX_EVALUATIONS_WITHOUT_OBJECTIVE:
            return
        names = set(metrics)
        self._seen = self._objective in names
        splits_by_name = (map(metric_direction.SPLIT_BY_WORD.get, metric_direction.words_of_metric(name)) for name in names)
        if self._seen or all("train" in splits for splits in splits_by_name):
            return
        self._others |= names
        self._evaluations += 1
        if self._evaluations == MAX_EVALUATIONS_WITHOUT_OBJECTIVE:
            similar_names = difflib.get_close_matches(self._objective, self._others, n=1)
            hint = f"; did you mean objective={similar_names[0]!r}?" if similar_names else ""
            self._warn(
                "objective",
                f"the first {MAX_EVALUATIONS_WITHOUT_OBJECTIVE} evaluations lack the objective {self._objective!r}; they contain "
                f"{', '.join(sorted(self._others)[:5])}{hint}",
            )
