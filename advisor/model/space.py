"""Defines `Domain`: the values of a hyperparameter and their scale, on which all code measures positions in its range."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, model_validator

HyperparameterValue: TypeAlias = bool | int | float | str

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]

RELATIVE_VALUE_TOLERANCE = 1e-6
"""Maximum relative difference of equal values, because 32-bit floats and text round them."""

MAX_FINITE_VALUE = 1e100
"""Maximum absolute value that counts as finite; only diverged runs log larger ones."""

Params: TypeAlias = Mapping[str, HyperparameterValue]
"""Values of a trial's hyperparameters, by name."""
SettingKey: TypeAlias = tuple[tuple[str, str], ...]
"""(Name, value as text) of each hyperparameter, sorted by name."""

ParameterType = Literal["float", "int", "categorical", "bool"]
RangeSide = Literal["low", "high"]
AxisScale = Literal["linear", "log", "reverse-log"]
""""reverse-log" is logarithmic in 1 - value, so that 0.9 to 0.99 is as long as 0.99 to 0.999."""


def setting_key(params: Params) -> SettingKey:
    """Return a key that is equal for equal settings. Numbers are rounded to seven significant digits, as 32-bit floats are."""
    is_number = {n: isinstance(v, int | float) and not isinstance(v, bool) for n, v in params.items()}
    return tuple(sorted((n, f"{float(v):.7g}" if is_number[n] else str(v)) for n, v in params.items()))


class Domain(BaseModel):
    """The values that a hyperparameter may have: a numeric range with a scale, or a list of choices."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    type: ParameterType | None = None
    low: float | None = None
    """Lower end of the range (inclusive)."""
    high: float | None = None
    """Upper end of the range (inclusive)."""
    scale: AxisScale = "linear"
    """Scale on which values are drawn uniformly: linear, log, or reverse-log (logarithmic in 1 - value)."""
    choices: tuple[HyperparameterValue, ...] | None = None
    """Values to choose from, in place of a range."""
    limits: tuple[float | None, float | None] | None = None
    """[minimum, maximum] of the hyperparameter in this and all later studies, set by memory, latency or the task; null for no
    limit."""

    @model_validator(mode="after")
    def _check_domain(self) -> Self:
        if (self.low is None) != (self.high is None):
            raise ValueError("a range needs both low and high")
        if self.low is not None and self.high is not None:
            if self.choices is not None:
                raise ValueError("give either low and high or choices, not both")
            if self.low >= self.high:
                raise ValueError(f"low ({self.low:g}) must be less than high ({self.high:g})")
            if not math.isfinite(self.high - self.low):
                raise ValueError("the range is too wide for double precision")
            if self.type == "int" and math.ceil(self.low) > math.floor(self.high):
                raise ValueError(f"no whole number lies between {self.low:g} and {self.high:g}")
            if self.scale == "log" and self.low <= 0:
                raise ValueError(f"a log scale needs low > 0, not {self.low:g}")
            if self.scale == "reverse-log" and self.high >= 1:
                raise ValueError(f"a reverse-log scale needs high < 1, not {self.high:g}")
            if self.scale == "reverse-log" and self.type == "int":
                raise ValueError("a reverse-log scale is for numbers below 1, not for an int parameter")
            if self.type in ("categorical", "bool"):
                raise ValueError(f"a {self.type} parameter takes choices, not low and high")
        if self.choices is not None:
            self._check_choices(self.choices)
        self._check_limits()
        return self

    def _check_limits(self) -> None:
        if self.limits is None:
            return
        minimum, maximum = self.declared_limits
        if self.choices is not None or self.type in ("categorical", "bool"):
            raise ValueError("only a number has limits; choices have none")
        if not minimum < maximum:
            raise ValueError(f"the first limit must be less than the second, not {minimum:g} and {maximum:g}")
        if self.type == "int" and any(end is not None and not end.is_integer() for end in self.limits):
            raise ValueError(f"the limits of an int parameter must be whole numbers, not {minimum:g} to {maximum:g}")
        if self.low is not None and self.high is not None and not (minimum <= self.low and self.high <= maximum):
            raise ValueError(f"the range {self.low:g} to {self.high:g} exceeds the limits, {minimum:g} to {maximum:g}")

    def _check_choices(self, choices: tuple[HyperparameterValue, ...]) -> None:
        if len(choices) == 0:
            raise ValueError("choices must not be empty")
        if len({(type(c), c) for c in choices}) < len(choices):
            raise ValueError("a choice appears twice")
        if self.type == "int" and not all(isinstance(c, int) for c in choices):
            raise ValueError("the choices of an int parameter must be whole numbers")

    @property
    def numeric(self) -> bool:
        return self.low is not None

    @property
    def ends(self) -> tuple[float, float]:
        """Ends (low, high) of a numeric range."""
        assert self.low is not None
        assert self.high is not None
        return self.low, self.high

    @property
    def declared_limits(self) -> tuple[float, float]:
        """Limits (minimum, maximum) that the study file declares; infinite for no limit."""
        minimum, maximum = self.limits or (None, None)
        return -math.inf if minimum is None else minimum, math.inf if maximum is None else maximum

    @property
    def options(self) -> tuple[HyperparameterValue, ...]:
        """Values of a categorical or boolean domain; empty for a numeric range."""
        if self.choices is not None:
            return self.choices
        return (False, True) if self.type == "bool" else ()

    @property
    def has_several_values(self) -> bool:
        return self.numeric or len(self.options) > 1

    @property
    def decades(self) -> float:
        """Width of a range with a log or reverse-log scale, in factors of ten."""
        log_ends = transform_to_scale(np.array(self.ends), self.scale)
        return float(log_ends[1] - log_ends[0]) / math.log(10)

    def to_positions(self, values: Sequence[HyperparameterValue] | FloatArray) -> FloatArray:
        """Return the positions of `values`, shape (n,), on the scale of the range: 0 at `low`, 1 at `high`, beyond them
        outside. A choice has the position index / (choices - 1). Values without a position (unknown choice, text in a range,
        zero on a log scale) get NaN."""
        if not self.numeric:
            index = {option: i for i, option in reversed(list(enumerate(self.options)))}
            last_index = max(len(self.options) - 1, 1)
            return np.array([index[v] / last_index if v in index else math.nan for v in values], dtype=np.float64)
        raw = np.array([as_number(v) for v in values], dtype=np.float64)
        low, high = transform_to_scale(np.array(self.ends), self.scale)
        return np.asarray((transform_to_scale(raw, self.scale) - low) / (high - low), dtype=np.float64)

    def value_at_position(self, position: float) -> HyperparameterValue:
        """Return the value at `position`, also outside 0 to 1. Integers are rounded; choices share 0 to 1 equally."""
        if not self.numeric:
            options = self.options
            return options[min(max(int(position * len(options)), 0), len(options) - 1)]
        low, high = self.ends
        if self.scale == "log":
            value = math.exp(math.log(low) + position * (math.log(high) - math.log(low)))
        elif self.scale == "reverse-log":
            low, high = math.log1p(-low), math.log1p(-high)
            value = -math.expm1(low + position * (high - low))
        else:
            value = low + position * (high - low)
        return round(value) if self.type == "int" else value

    def draw(self, position: float) -> HyperparameterValue:
        """Return the value for a random `position`, uniformly distributed in [0, 1). All integers of a linear range have equal
        probability, and those of a log range in proportion to the interval that is rounded to them. Floats have 12 significant
        digits, because the last bit of logarithms differs between platforms."""
        if not self.numeric:
            return self.value_at_position(position)
        low, high = self.ends
        if self.type != "int":
            return min(max(float(f"{self.value_at_position(position):.12g}"), low), high)
        low, high = math.ceil(low), math.floor(high)
        if self.scale == "log":
            edges = math.log(low - 0.5), math.log(high + 0.5)
            return min(max(round(math.exp(edges[0] + position * (edges[1] - edges[0]))), low), high)
        return min(low + math.floor(position * (high - low + 1)), high)

    def contains(self, value: HyperparameterValue) -> bool:
        """Return True if the domain contains `value`, with a tolerance of `RELATIVE_VALUE_TOLERANCE` range widths."""
        position = float(self.to_positions([value])[0])
        return -RELATIVE_VALUE_TOLERANCE <= position <= 1 + RELATIVE_VALUE_TOLERANCE

    def allows_logged_value(self, value: HyperparameterValue) -> bool:
        return bool(self.allows_each([value])[0])

    def allows_each(self, values: Sequence[HyperparameterValue]) -> BoolArray:
        """Return a mask, shape (n,), of the logged values that the domain contains, apart from rounding and letter case."""
        if self.numeric:
            positions = self.to_positions(values)
            return np.asarray((positions >= -RELATIVE_VALUE_TOLERANCE) & (positions <= 1 + RELATIVE_VALUE_TOLERANCE))
        known_values = {(type(v), v): v for v in values}  # the key contains the type, because True equals 1
        options = self.options
        verdicts = {key: v in options or any(equal_values(v, option) for option in options) for key, v in known_values.items()}
        return np.array([verdicts[type(v), v] for v in values], dtype=np.bool_)


def equal_values(value: HyperparameterValue, other: HyperparameterValue) -> bool:
    """Return True if two values are equal up to rounding or, if one is text, up to letter case."""
    if isinstance(value, str) or isinstance(other, str):  # choices may mix the number 1 and the text "1"
        return str(value).lower() == str(other).lower()
    return math.isclose(value, other, rel_tol=RELATIVE_VALUE_TOLERANCE)


def transform_to_scale(values: FloatArray, scale: AxisScale) -> FloatArray:
    """Transform `values`, (n,), to numbers that increase uniformly along the scale; values without a position become NaN."""
    if scale == "linear":
        return values
    with np.errstate(divide="ignore", invalid="ignore"):
        log_values = np.log(values) if scale == "log" else -np.log1p(-values)
    return np.where(np.isfinite(log_values), log_values, np.nan)


def round_significant(value: float, digits: int = 3) -> float:
    """Round to `digits` significant digits. Just below 1, round the distance from 1, so that 0.9995 does not become 1."""
    if 0.99 < value < 1:
        return round(1 - float(f"{1 - value:.{digits}g}"), 15)
    return float(f"{value:.{digits}g}")


def round_up_steps(steps: float) -> int:
    unit: int = 10 ** max(len(str(math.ceil(steps))) - 2, 0)
    return max(math.ceil(steps / unit) * unit, 1)


MAX_RANGE_END_ROUNDING = 0.01
"""Maximum rounding error of an inferred end, as a share of its value and of the range's width."""
MAX_RANGE_END_DIGITS = 6


def round_outwards(value: float, side: Literal["low", "high"], width: float = math.inf) -> float:
    """Round an end outwards, to two significant digits, or more if that moves it by over 1 % of its value or `width`."""
    value = float(f"{value:.12g}")  # remove the rounding errors of earlier computations
    if not value or round_significant(value) == value:
        return value
    if 0.99 < value < 1:
        return round(1 - round_outwards(1 - value, "high" if side == "low" else "low", width), 15)
    max_error = MAX_RANGE_END_ROUNDING * min(abs(value), width)
    choices = (_round_outwards(value, side, digits) for digits in range(2, MAX_RANGE_END_DIGITS))
    return next((end for end in choices if abs(end - value) <= max_error), _round_outwards(value, side, MAX_RANGE_END_DIGITS))


def _round_outwards(value: float, side: str, digits: int) -> float:
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - digits + 1)
    return float(f"{(math.floor if side == 'low' else math.ceil)(value / unit) * unit:.{digits}g}")


def as_number(value: object) -> float:
    """Return `value` as a float: 1 for True, 0 for False, and NaN if it is not a number."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan


_OPEN_INTERVAL_NAMES = frozenset(("beta1", "beta2"))
_HALF_OPEN_INTERVAL_NAMES = frozenset("momentum dropout labelsmoothing rho gamma ema".split())
_POSITIVE_PARAMETER_NAMES = {*"learningrate lr lr0 epsilon eps batchsize clip temperature width units layers depth".split()}
_MOVING_AVERAGE_NAMES = frozenset("momentum beta1 beta2 ema".split())
_NONNEGATIVE_PARAMETER_NAMES = frozenset("decay weightdecay wd warmup alpha l1 l2".split())


def natural_limits_of_name(name: str, kind: ParameterType | None = None) -> tuple[float, float]:
    """Return the limits (low, high) that a hyperparameter's name implies, as 0 and 1 for momentum, or else infinite limits."""
    phrases = _word_sequences(name)
    if phrases & _OPEN_INTERVAL_NAMES or "oneminusmomentum" in phrases:
        return 0.0, 1.0
    if phrases & _HALF_OPEN_INTERVAL_NAMES:
        return (-1e-300, 1.0)
    if phrases & _POSITIVE_PARAMETER_NAMES or kind == "int":
        return 0.0, math.inf
    if phrases & _NONNEGATIVE_PARAMETER_NAMES:
        return (-1e-300, math.inf)
    return -math.inf, math.inf


def _word_sequences(name: str) -> set[str]:
    """Return all sequences of one to three successive words of the name, joined without spaces."""
    words = words_of_name(name)
    return {"".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, min(i + 3, len(words)) + 1)}


_STEP_UNIT_WORDS = {"epoch", "epochs", "steps", "iters", "iterations", "iter", "iteration", "step", "updates"}
_DATA_UNIT_WORDS = {"tokens", "timesteps"}
_TRAINING_WORDS = {"train", "training", "total"}
_TRAINING_COUNT_WORDS = {*"max num number n no nb of global budget scheduled trainer".split(), *_TRAINING_WORDS}


@lru_cache(maxsize=10_000)
def is_training_length(name: str) -> bool:
    """Return True if the name denotes the length of training, as epochs, max_steps, trainer.maxEpochs and num_iterations do.
    Every word must be about it, which excludes warmup_steps, steps_per_epoch, eval_steps and step_size."""
    words = words_of_name(name)
    unit_words = [w for w in words if w in _STEP_UNIT_WORDS]
    if unit_words:
        other_words = [w for w in words if w not in _STEP_UNIT_WORDS]
        is_step_count = len(unit_words) == 1 and (bool(other_words) or unit_words[0] not in ("step", "iter", "iteration"))
        return is_step_count and all(w in _TRAINING_COUNT_WORDS for w in other_words)
    rest = [w for w in words if w not in _DATA_UNIT_WORDS]
    return len(words) - len(rest) == 1 and bool(_TRAINING_WORDS & set(rest)) and all(w in _TRAINING_COUNT_WORDS for w in rest)


def is_number_of_epochs(name: str) -> bool:
    return is_training_length(name) and "epoch" in name.lower()


def is_transformers_schedule_name(name: str) -> bool:
    """Return True if the text names a kind of schedule in Transformers, whose names study files use."""
    return words_of_name(name)[-3:] == ["lr", "scheduler", "type"]


def words_of_name(name: str) -> list[str]:
    """Return the lower-case words of a name: trainer, max and epochs for trainer.maxEpochs."""
    return list(_cached_words_of_name(name))


@lru_cache(maxsize=10_000)
def _cached_words_of_name(name: str) -> tuple[str, ...]:
    return tuple(w for w in re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower()) if w)


_SCHEDULE_WORDS = frozenset(
    "decay schedule scheduler warmup min final end factor gamma multiplier mult scale exponent power cycles drop patience plateau "
    "reduce step steps epoch epochs milestones ratio policy mode type cosine cos auto find finder".split()
)


@lru_cache(maxsize=10_000)
def is_learning_rate(name: str) -> bool:
    """Return True if the name denotes a learning rate and not a parameter of its schedule."""
    words = set(words_of_name(name))
    return bool({"lr", "lr0", "learningrate"} & words or {"learning", "rate"} <= words) and not words & _SCHEDULE_WORDS


def scale_of_new_range(name: str, low: float, high: float, scale: AxisScale) -> AxisScale:
    """Return `scale`, or the scale that the hyperparameter's name implies: log for a learning rate, and reverse-log for
    momentum and Adam's betas if the steps that they average over, 1 / (1 - value), differ tenfold over the range."""
    if is_learning_rate(name) and low > 0:
        return "log"
    is_moving_average = _word_sequences(name) & _MOVING_AVERAGE_NAMES and "oneminus" not in _word_sequences(name)
    return "reverse-log" if is_moving_average and low >= 0 and 10 * (1 - high) <= 1 - low and high < 1 else scale
