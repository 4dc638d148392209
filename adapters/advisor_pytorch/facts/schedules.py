"""Determines the kind of a learning-rate schedule from its scheduler.

| scheduler | kind |
|---|---|
| `StepLR`, `MultiStepLR` | step |
| `ExponentialLR` | exponential |
| `CosineAnnealingLR` | cosine |
| `CosineAnnealingWarmRestarts`, `CyclicLR` | cyclic |
| `OneCycleLR` | one-cycle |
| `PolynomialLR` | polynomial; linear with a power of 1 |
| `LinearLR`, `ConstantLR` | linear, step; warmup+constant if they rise |
| `LambdaLR`, also Transformers' schedules | form of the function over the planned steps, else from the function's name |
| `MultiplicativeLR` | exponential if the factor is constant |
| `SequentialLR`, `ChainedScheduler` | the kind after the warmup, prefixed by "warmup+" if there is one |
| `ReduceLROnPlateau`, and other schedulers that watch a metric | plateau |
| any other class | from its name |

The kind of a schedule says how the learning rate decreases. A constant phase before the decrease (warmup, stable, decay) is
ignored. A user's function is evaluated only if its code shows no side effects (`advisor_pytorch.facts.side_effects`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from torch.optim import lr_scheduler

from advisor_pytorch.facts.side_effects import is_side_effect_free

_SCHEDULE_KIND_BY_CLASS = {
    "StepLR": "step",
    "MultiStepLR": "step",
    "ExponentialLR": "exponential",
    "CosineAnnealingLR": "cosine",
    "CosineAnnealingWarmRestarts": "cyclic",
    "CyclicLR": "cyclic",
    "OneCycleLR": "one-cycle",
    "ReduceLROnPlateau": "plateau",
}
_SCHEDULE_KIND_BY_PATTERN = (
    ("plateau|greedy|adaptive", "plateau"),
    ("one_?cycle", "one-cycle"),
    ("cyclic|restart", "cyclic"),
    ("cosine", "cosine"),
    ("poly", "polynomial"),
    ("expo", "exponential"),
    ("step_?lr|multi_?step", "step"),
    ("linear", "linear"),
    ("constant", "constant"),
)


def describe_schedule(schedulers: Sequence[Any], steps: int | None) -> dict[str, str] | None:
    """Describe all schedulers combined. steps: planned number of steps."""
    unwrapped = [unwrap_scheduler(s) for s in schedulers]
    nested_ids = {id(part) for s in unwrapped for part in getattr(s, "_schedulers", ())}
    outermost = list({id(s): s for s in unwrapped if id(s) not in nested_ids}.values())
    if not outermost:
        return None
    kind = _combine_schedule_kinds([schedule_kind(s, steps) for s in outermost])
    return {"class": "+".join(type(s).__name__ for s in outermost), "kind": kind}


def unwrap_scheduler(scheduler: Any) -> Any:
    inner_scheduler = getattr(scheduler, "scheduler", None)
    return inner_scheduler if isinstance(inner_scheduler, lr_scheduler.LRScheduler) else scheduler


def schedule_kind(scheduler: Any, steps: int | None) -> str:
    class_name = _torch_class_name(scheduler)
    try:
        if (kind := _kind_by_parameters(class_name, scheduler, steps)) is not None:
            return kind
    except Exception:  # the user's scheduler class is incomplete, or its function fails at some steps
        return "other"
    kind_by_name = _schedule_kind_from_name(type(scheduler).__name__)
    has_warmup = bool(getattr(scheduler, "warmup_t", 0)) and not kind_by_name.startswith("warmup+")  # timm's attribute
    return "warmup+" + kind_by_name if has_warmup else kind_by_name


def _kind_by_parameters(class_name: str, scheduler: Any, steps: int | None) -> str | None:
    if class_name in ("LinearLR", "ConstantLR"):
        start, end = (scheduler.start_factor, scheduler.end_factor) if class_name == "LinearLR" else (scheduler.factor, 1)
        falling_kind = "linear" if class_name == "LinearLR" else "step"
        return "constant" if start == end else "warmup+constant" if start < end else falling_kind
    if class_name == "PolynomialLR":
        return "linear" if scheduler.power == 1 else "polynomial"
    if class_name == "MultiplicativeLR":
        return _multiplicative_lr_schedule_kind(scheduler)
    if class_name == "LambdaLR":
        return _lambda_lr_schedule_kind(scheduler, steps)
    if class_name in ("SequentialLR", "ChainedScheduler"):
        return _combine_schedule_kinds([schedule_kind(part, steps) for part in scheduler._schedulers])
    return _SCHEDULE_KIND_BY_CLASS.get(class_name)


def _torch_class_name(scheduler: Any) -> str:
    """Return the name of the PyTorch class whose rule the scheduler follows; empty if the scheduler has its own rule."""
    for cls in type(scheduler).__mro__:
        if cls.__module__ == lr_scheduler.__name__:
            return cls.__name__
        if "get_lr" in vars(cls) or "step" in vars(cls):
            break
    return ""


def _multiplicative_lr_schedule_kind(scheduler: Any) -> str:
    function = scheduler.lr_lambdas[0]
    if not is_side_effect_free(function):
        return _schedule_kind_from_name(_function_name(function))
    factors = [float(function(i)) for i in range(1, 101)]
    if any(f != factors[0] for f in factors):
        return "other"
    return "constant" if factors[0] == 1 else "exponential"


def _lambda_lr_schedule_kind(scheduler: Any, steps: int | None) -> str:
    function = scheduler.lr_lambdas[0]
    kind_by_name = _schedule_kind_from_name(_function_name(function))
    if not is_side_effect_free(function):
        return kind_by_name
    keywords = getattr(function, "keywords", {})
    kind_by_values = schedule_kind_of_function(function, keywords.get("num_training_steps") or steps)
    return kind_by_name if kind_by_values.endswith("other") and not kind_by_name.endswith("other") else kind_by_values


def _combine_schedule_kinds(kinds: Sequence[str]) -> str:
    """Return the kind of a schedule that applies several schedulers in sequence or multiplies their factors."""
    warmup = "warmup+" if any(k.startswith("warmup+") for k in kinds) else ""
    decay_kinds = [kind for k in kinds if (kind := k.removeprefix("warmup+")) != "constant"]
    if not decay_kinds:
        return warmup + "constant"
    if "plateau" in decay_kinds:
        return warmup + "plateau"
    return warmup + (decay_kinds[0] if len(set(decay_kinds)) == 1 else "other")


def _schedule_kind_from_name(name: str) -> str:
    lower_name = name.lower()
    kind = next((k for pattern, k in _SCHEDULE_KIND_BY_PATTERN if re.search(pattern, lower_name)), "other")
    return "warmup+" + kind if "warmup" in lower_name and kind != "other" else kind


def _function_name(function: Any) -> str:
    function = getattr(function, "func", function)  # for a `functools.partial`, use the name of the function that it wraps
    return str(getattr(function, "__qualname__", type(function).__name__))


SCHEDULE_GRID_POINTS = 257
_EQUAL_RATES_TOLERANCE = 2e-3
"""Maximum difference, as a fraction of the peak learning rate, between two learning rates that count as equal."""
_MAX_FIT_ERROR = 0.03
"""Maximum distance between a curve and the function fitted to it, as a fraction of the total decrease."""
_DEFAULT_SCHEDULE_STEPS = 1 << 20
"""Number of steps over which a schedule is evaluated if the planned number of steps is unknown."""


def schedule_kind_of_function(factor: Callable[[int], float], steps: int | None) -> str:
    """Return the kind of a schedule that multiplies the base rate by `factor(step)`, up to the last change of `factor`:

    `factor` may count epochs while `steps` counts optimizer steps. Errors in `factor` propagate.
    """
    end = steps or _DEFAULT_SCHEDULE_STEPS
    probed_steps = [0] + [1 << i for i in range(end.bit_length()) if 1 << i < end] + [end]
    end = _last_step_of_change(probed_steps, [float(factor(i)) for i in probed_steps])
    for _ in range(3):  # each pass narrows the interval of steps in which the last change of the factor lies
        grid = sorted({round(end * i / (SCHEDULE_GRID_POINTS - 1)) for i in range(SCHEDULE_GRID_POINTS)})
        values = [float(factor(i)) for i in grid]
        last_change = _last_step_of_change(grid, values)
        if last_change > 0.8 * end:
            break
        end = last_change
    return schedule_kind_of_values(grid, values)


def schedule_kind_of_values(steps: Sequence[int], values: Sequence[float]) -> str:
    """Return the kind of a schedule. values: learning rates at `steps`, known up to a constant factor; both have shape (n,)."""
    if not all(math.isfinite(v) for v in values):
        return "other"
    peak = max(values, key=abs)
    if peak <= 0:
        return "constant" if max(values) - min(values) == 0 else "other"
    top = next(i for i, v in enumerate(values) if v >= peak * (1 - _EQUAL_RATES_TOLERANCE))
    if top and not (all((b >= a for a, b in pairwise(values[: top + 1])))):
        return "cyclic" if _count_rises_after_falls(values, peak) > 1 else "other"
    kind = _decay_kind(steps[top:], values[top:], peak)
    return "warmup+" + kind if top and kind != "cyclic" else kind


def _decay_kind(steps: Sequence[int], values: Sequence[float], peak: float) -> str:
    """Return the kind of a schedule without a warmup, whose learning rate is highest at the first step."""
    tolerance = peak * _EQUAL_RATES_TOLERANCE
    if max(values) - min(values) <= tolerance:
        return "constant"
    if _count_rises_after_falls(values, peak):
        return "cyclic"
    is_changed = [not math.isclose(a, b) for a, b in pairwise(values)]
    if len(values) >= 8 and not any(a and b for a, b in pairwise(is_changed)):
        return "step"
    decay_start = max(i for i, v in enumerate(values) if v >= peak - tolerance)  # a constant phase may precede the fall
    decay_end = len(values) - 1
    while values[decay_end - 1] - values[decay_end] == 0:
        decay_end -= 1
    ts = [(s - steps[decay_start]) / (steps[decay_end] - steps[decay_start]) for s in steps[decay_start : decay_end + 1]]
    decay_values = values[decay_start : decay_end + 1]
    scaled_values = [(v - decay_values[-1]) / (decay_values[0] - decay_values[-1]) for v in decay_values]
    return _decay_form(ts, scaled_values, decay_values)


def _decay_form(ts: Sequence[float], scaled_values: Sequence[float], values: Sequence[float]) -> str:
    """ts: time (n,) from 0 to 1. down: learning rate (n,), scaled to fall from 1 to 0. values: unscaled learning rate."""

    def fits(form: Callable[[float], float]) -> bool:
        return all(abs(d - form(t)) <= _MAX_FIT_ERROR for t, d in zip(ts, scaled_values, strict=True))

    if fits(lambda t: 1 - t):
        return "linear"
    if fits(lambda t: (1 + math.cos(math.pi * t)) / 2):
        return "cosine"
    if values[-1] > 0:
        rate = math.log(values[-1] / values[0])
        if fits(lambda t: (math.exp(rate * t) - math.exp(rate)) / (1 - math.exp(rate))):
            return "exponential"
    value_at_half = next((d for t, d in zip(ts, scaled_values, strict=True) if t >= 0.5), 0.0)
    power = math.log(value_at_half) / math.log(0.5) if 0 < value_at_half < 1 else 0.0
    return "polynomial" if power and fits(lambda t: (1 - t) ** power) else "other"


def _last_step_of_change(steps: Sequence[int], values: Sequence[float]) -> int:
    peak = max(abs(v) for v in values)
    for i in range(len(values) - 1, 0, -1):
        if abs(values[i - 1] - values[-1]) > peak * _EQUAL_RATES_TOLERANCE:
            return steps[i]
    return steps[min(1, len(steps) - 1)]


def _count_rises_after_falls(values: Sequence[float], peak: float) -> int:
    is_rising = [b > a for a, b in pairwise(values) if abs(b - a) > peak * _EQUAL_RATES_TOLERANCE]
    return sum(up and not before for before, up in pairwise(is_rising))
