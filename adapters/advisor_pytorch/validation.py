"""Checks the user's arguments before the training starts, so that mistakes are reported within a second."""

from __future__ import annotations

import operator
import os
import posixpath
import re
from collections.abc import Mapping, Sequence

import torch

from advisor.contract import TAG_PREFIX
from advisor.contract.metric_direction import Direction, contradicts_direction, direction_of_metric
from advisor_logging.limits import MAX_EXACT_STEP

_BETTER_VALUES = {"minimize": "higher", "maximize": "lower"}
"""For each direction of the objective: the values that are better according to an objective name that contradicts this
direction."""
_MLFLOW_NAME_PATTERN = re.compile(r"[/\w.\- :]{1,250}")


def is_mlflow_name(name: object) -> bool:
    """Return whether MLflow accepts the name of a metric or param: letters, digits, `_ - . : /` and spaces are allowed, but no
    paths like `..`."""
    if not isinstance(name, str) or not _MLFLOW_NAME_PATTERN.fullmatch(name):
        return False
    return posixpath.normpath(name) == name and name != "." and not name.startswith(("..", "/"))


def check_training(model: object, optimizers: Sequence[object]) -> None:
    """Raise TypeError or ValueError unless the arguments are a PyTorch module and one or more optimizers."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    if not optimizers:
        raise ValueError(
            "optimizer must be an optimizer, or a sequence of optimizers with the main one first; the sequence is empty"
        )
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"optimizer must be a torch.optim.Optimizer, not {type(optimizer).__name__}")


def check_objective(params: object, objective: object, direction: object) -> Direction:
    """Return the direction in which the objective is optimised: `direction`, or by default the direction that the objective's
    name implies.

    Raises TypeError or ValueError if the hyperparameters or the objective cannot be logged unchanged, or if the direction is
    unknown or contradicts the objective's name.
    """
    if not isinstance(params, Mapping):
        raise TypeError(f"params must be a mapping of names to values, such as vars(args), not {type(params).__name__}")
    wrong = [name for name in params if not is_mlflow_name(name)]
    if wrong:
        raise ValueError(f"MLflow does not accept {wrong[0]!r} as the name of a parameter: use letters, digits and _ - . : /")
    if not isinstance(objective, str) or not is_mlflow_name(objective):
        raise ValueError(f"MLflow does not accept {objective!r} as the name of a metric: use letters, digits and _ - . : /")
    if direction is None:
        inferred = direction_of_metric(objective)
        if inferred is None:
            raise ValueError(
                f'the name {objective!r} does not say whether lower or higher values are better: pass direction="minimize" or '
                'direction="maximize"'
            )
        return inferred
    if direction not in ("minimize", "maximize"):
        raise ValueError(f'direction must be "minimize" or "maximize", not {direction!r}')
    stated: Direction = "minimize" if direction == "minimize" else "maximize"
    if contradicts_direction(objective, stated):
        raise ValueError(
            f"direction={direction!r} contradicts the name of the objective {objective!r}, whose {_BETTER_VALUES[stated]} values "
            "are better: leave direction out, or rename the metric"
        )
    return stated


def check_count(name: str, value: object, minimum: int) -> None:
    """Raise TypeError or ValueError unless `value` is an integer of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, not {value!r}")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, not {value}")


def check_counts(counts: Mapping[str, int | None]) -> None:
    """Raise TypeError or ValueError unless each value is a positive integer or None. counts: values by tag name."""
    for tag, number in counts.items():
        if number is not None:
            check_count(tag.removeprefix(TAG_PREFIX), number, 1)


def check_modes(guard: object, autopsy: object) -> None:
    """Raise ValueError unless `guard` and `autopsy` are valid modes."""
    if guard not in (None, "warn", "stop"):
        raise ValueError(f'guard must be None, "warn" or "stop", not {guard!r}')
    if not isinstance(autopsy, bool) and autopsy != "batch":
        raise ValueError(f'autopsy must be True, False or "batch", not {autopsy!r}')


def check_step(step: object) -> int:
    """Return the number of a step as a plain integer. Raises TypeError or ValueError if the step is not an integer from 0 to
    2**53."""
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
    """Create the folder if it does not exist. Raises OSError if this process cannot write files to the folder."""
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise OSError(f"checkpoint_dir {os.fspath(folder)!r} cannot be made: {error.strerror}") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"checkpoint_dir {os.fspath(folder)!r} is not writable")
