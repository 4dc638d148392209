"""Defines `Domain`: the set of values that a hyperparameter may have, and the scale on which they are measured.

All code that converts values to positions in a range, or positions to values, uses `Domain.to_unit` and `Domain.from_unit`. So
learning rates are always measured in decades, and dropout rates linearly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, model_validator

Value: TypeAlias = bool | int | float | str
"""Value of a hyperparameter as written in a study file."""

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]

TOLERANCE = 1e-6
"""Relative tolerance for comparing values, because 32-bit floats and text round logged values."""

MAX_FINITE_VALUE = 1e100
"""Maximum absolute value that counts as finite. Only diverged runs have values above this maximum, and squares of values below
it do not overflow."""

SettingKey: TypeAlias = tuple[tuple[str, str], ...]
"""Identifies a hyperparameter setting: (name, value as text) of each hyperparameter, sorted by name."""

Kind = Literal["float", "int", "categorical", "bool"]
Side = Literal["low", "high"]
"""The low or the high end of a range."""
Scale = Literal["linear", "log", "reverse-log"]
"""Scale of a range. The scale "reverse-log" is logarithmic in 1 - value, so that the ranges 0.9 to 0.99 and 0.99 to 0.999 have
equal length."""


def setting_key(params: Mapping[str, Value]) -> SettingKey:
    """Return a key that identifies a hyperparameter setting. Numbers are rounded to seven digits, because text and 32-bit
    floats change later digits."""
    return tuple(sorted((name, _rounded_value(value)) for name, value in params.items()))


def _rounded_value(value: Value) -> str:
    return f"{float(value):.7g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


class Domain(BaseModel):
    """The values that a hyperparameter may have: a numeric range with a scale, or a list of choices."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    type: Kind | None = None
    low: float | None = None
    """Lower end of the range (inclusive)."""
    high: float | None = None
    """Upper end of the range (inclusive)."""
    scale: Scale = "linear"
    """Scale on which the range is sampled uniformly: linear, log, or reverse-log (logarithmic in 1 - value)."""
    choices: tuple[Value, ...] | None = None
    """Values to choose from, instead of a range."""
    limits: tuple[float | None, float | None] | None = None
    """[minimum, maximum] of the hyperparameter in this and all later studies, due to memory, latency or the task; null means no
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
        minimum, maximum = self.reach
        if self.choices is not None or self.type in ("categorical", "bool"):
            raise ValueError("only a number has limits; choices have none")
        if not minimum < maximum:
            raise ValueError(f"the first limit must be less than the second, not {minimum:g} and {maximum:g}")
        if self.type == "int" and any(end is not None and not end.is_integer() for end in self.limits):
            raise ValueError(f"the limits of an int parameter must be whole numbers, not {minimum:g} to {maximum:g}")
        if self.low is not None and self.high is not None and not (minimum <= self.low and self.high <= maximum):
            raise ValueError(f"the range {self.low:g} to {self.high:g} exceeds the limits, {minimum:g} to {maximum:g}")

    def _check_choices(self, choices: tuple[Value, ...]) -> None:
        if len(choices) == 0:
            raise ValueError("choices must not be empty")
        if len({(type(c), c) for c in choices}) < len(choices):
            raise ValueError("a choice appears twice")
        if self.type == "int" and not all(isinstance(c, int) for c in choices):
            raise ValueError("the choices of an int parameter must be whole numbers")

    @property
    def numeric(self) -> bool:
        """True if the domain is a numeric range."""
        return self.low is not None

    @property
    def reach(self) -> tuple[float, float]:
        """Declared limits (minimum, maximum) of the range; infinite if none is declared."""
        minimum, maximum = self.limits or (None, None)
        return -math.inf if minimum is None else minimum, math.inf if maximum is None else maximum

    @property
    def options(self) -> tuple[Value, ...]:
        """Choices of a categorical or boolean domain; empty if the domain is a range."""
        if self.choices is not None:
            return self.choices
        return (False, True) if self.type == "bool" else ()

    @property
    def varied(self) -> bool:
        """True if the domain contains more than one value."""
        return self.numeric or len(self.options) > 1

    @property
    def decades(self) -> float:
        """Width of a range with a log or reverse-log scale, in factors of ten."""
        assert self.low is not None
        assert self.high is not None
        ends = transform_to_scale(np.array([self.low, self.high]), self.scale)
        return float(ends[1] - ends[0]) / math.log(10)

    def to_unit(self, values: Sequence[Value] | FloatArray) -> FloatArray:
        """Return the positions of `values` on the scale of the range, shape (n,): 0 at `low`, 1 at `high`, below 0 or above 1
        outside the range.

        The position of a choice is its index / (number of choices - 1). The position is NaN for a value that is not among the
        choices or has no position on the scale, such as zero on a log scale or text in a range.
        """
        if not self.numeric:
            index: dict[Value, int] = {}
            for i, option in enumerate(self.options):
                index.setdefault(option, i)
            last = max(len(self.options) - 1, 1)
            return np.array([index[v] / last if v in index else math.nan for v in values], dtype=np.float64)
        assert self.low is not None
        assert self.high is not None
        raw = np.array([as_number(v) for v in values], dtype=np.float64)
        low, high = transform_to_scale(np.array([self.low, self.high]), self.scale)
        return np.asarray((transform_to_scale(raw, self.scale) - low) / (high - low), dtype=np.float64)

    def from_unit(self, position: float) -> Value:
        """Return the value at `position`; positions outside 0 to 1 are extrapolated on the scale.

        The value is rounded in an integer domain; choices divide [0, 1) into equal parts.
        """
        if not self.numeric:
            options = self.options
            return options[min(max(int(position * len(options)), 0), len(options) - 1)]
        assert self.low is not None
        assert self.high is not None
        if self.scale == "log":
            value = math.exp(math.log(self.low) + position * (math.log(self.high) - math.log(self.low)))
        elif self.scale == "reverse-log":
            low, high = math.log1p(-self.low), math.log1p(-self.high)
            value = -math.expm1(low + position * (high - low))
        else:
            value = self.low + position * (self.high - self.low)
        if self.type == "int":
            return round(value)
        return value

    def draw(self, position: float) -> Value:
        """Return the value for a `position` that is uniformly distributed in [0, 1).

        Unlike with `from_unit`, all integers in a linear range are equally likely. On a log scale, the probability of an
        integer is proportional to the logarithmic length of the interval that is rounded to it. Floats are rounded to 12
        significant digits, because logarithms differ between platforms in the last bit.
        """
        if not self.numeric:
            return self.from_unit(position)
        assert self.low is not None
        assert self.high is not None
        if self.type != "int":
            return min(max(float(f"{self.from_unit(position):.12g}"), self.low), self.high)
        low, high = math.ceil(self.low), math.floor(self.high)
        if self.scale == "log":
            edges = math.log(low - 0.5), math.log(high + 0.5)
            return min(max(round(math.exp(edges[0] + position * (edges[1] - edges[0]))), low), high)
        return min(low + math.floor(position * (high - low + 1)), high)

    def contains(self, value: Value) -> bool:
        """Return True if the domain contains `value`; at both ends, the tolerance is `TOLERANCE` times the length of the range."""
        position = float(self.to_unit([value])[0])
        return -TOLERANCE <= position <= 1 + TOLERANCE

    def allows(self, value: Value) -> bool:
        """Return True if the domain contains the logged `value`; for choices, rounding and letter case are ignored."""
        return bool(self.allows_each([value])[0])

    def allows_each(self, values: Sequence[Value]) -> BoolArray:
        """Return a boolean mask, shape (n,), of the logged values for which `allows` is True."""
        if self.numeric:
            positions = self.to_unit(values)
            return np.asarray((positions >= -TOLERANCE) & (positions <= 1 + TOLERANCE))
        known_values = {(type(v), v): v for v in values}  # keys include the type, because True equals 1
        options = self.options
        allowed = {
            key: v in options or any(equal_values(v, option) for option in options) for key, v in known_values.items()
        }
        return np.array([allowed[type(v), v] for v in values], dtype=np.bool_)


def equal_values(value: Value, other: Value) -> bool:
    """Return True if two values are equal up to rounding. If one of the values is text, letter case is also ignored."""
    if isinstance(value, str) or isinstance(
        other, str
    ):  # if choices mix text and numbers, the number 1 is logged as the text "1"
        return str(value).lower() == str(other).lower()
    return math.isclose(value, other, rel_tol=TOLERANCE)


def transform_to_scale(values: FloatArray, scale: Scale) -> FloatArray:
    """Transform `values`, shape (n,), to numbers that are uniform and increasing on the scale, such as natural logarithms for a
    log scale.

    Values without a position on the scale become NaN.
    """
    if scale == "linear":
        return values
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(values) if scale == "log" else -np.log1p(-values)
    return np.where(np.isfinite(logs), logs, np.nan)


def round_significant(value: float, digits: int = 3) -> float:
    """Round `value` to `digits` significant digits. A value just below 1 is rounded by its distance from 1, so that 0.9995 does
    not become 1."""
    if 0.99 < value < 1:
        return round(1 - float(f"{1 - value:.{digits}g}"), 15)
    return float(f"{value:.{digits}g}")


def round_up(steps: float) -> int:
    """Round the number of steps up to two significant digits."""
    unit: int = 10 ** max(len(str(math.ceil(steps))) - 2, 0)
    return max(math.ceil(steps / unit) * unit, 1)


MAX_ROUNDING = 0.01
"""Maximum rounding error of the end of an inferred range, as a share of the end's value and of the range's width."""
MAX_DIGITS = 6
"""Maximum number of significant digits of the end of an inferred range."""


def round_outwards(value: float, side: Literal["low", "high"], width: float = math.inf) -> float:
    """Round the end of a range to two significant digits, away from the range. Use more digits if two digits would change the
    end by more than 1 % of its value or of `width`."""
    value = float(f"{value:.12g}")  # remove rounding errors of earlier computations
    if not value or round_significant(value) == value:
        return value
    if 0.99 < value < 1:
        return round(1 - round_outwards(1 - value, "high" if side == "low" else "low", width), 15)
    most = MAX_ROUNDING * min(abs(value), width)
    ends = (_round_outwards(value, side, digits) for digits in range(2, MAX_DIGITS))
    return next((end for end in ends if abs(end - value) <= most), _round_outwards(value, side, MAX_DIGITS))


def _round_outwards(value: float, side: str, digits: int) -> float:
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - digits + 1)
    return float(f"{(math.floor if side == 'low' else math.ceil)(value / unit) * unit:.{digits}g}")


def as_number(value: object) -> float:
    """Return `value` as a float: 1 for True, 0 for False, and NaN if it is no number."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan


_OPEN_UNIT_NAMES = frozenset(("beta1", "beta2"))
_HALF_OPEN_UNIT_NAMES = frozenset("momentum dropout labelsmoothing rho gamma ema".split())
_POSITIVE_NAMES = frozenset(
    "learningrate lr lr0 epsilon eps batchsize clip temperature width units layers depth".split()
)
_AVERAGING_NAMES = frozenset("momentum beta1 beta2 ema".split())
_NOT_NEGATIVE_NAMES = frozenset("decay weightdecay wd warmup alpha l1 l2".split())


def limits_of_name(name: str, kind: Kind | None = None) -> tuple[float, float]:
    """Return the limits (low, high) of any range of a hyperparameter with this name; infinite if it has none.

    For example, betas, momentum, dropout and smoothing must lie between 0 and 1; learning rates, sizes and integers must lie
    above 0.
    """
    phrases = _word_sequences(name)
    if phrases & _OPEN_UNIT_NAMES or "oneminusmomentum" in phrases:
        return 0.0, 1.0
    if phrases & _HALF_OPEN_UNIT_NAMES:
        return (-1e-300, 1.0)
    if phrases & _POSITIVE_NAMES or kind == "int":
        return 0.0, math.inf
    if phrases & _NOT_NEGATIVE_NAMES:
        return (-1e-300, math.inf)
    return -math.inf, math.inf


def _word_sequences(name: str) -> set[str]:
    """Return all sequences of one to three words of the name, joined without spaces."""
    words = words_of(name)
    return {"".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, min(i + 3, len(words)) + 1)}


_LENGTH_WORDS = {"epoch", "epochs", "steps", "iters", "iterations", "iter", "iteration", "step", "updates"}
_EXPOSURE_WORDS = {"tokens", "timesteps"}
_TRAINING_WORDS = {"train", "training", "total"}
_COUNTING_WORDS = {
    "max",
    "num",
    "number",
    "n",
    "no",
    "nb",
    "of",
    "global",
    "budget",
    "scheduled",
    "trainer",
    *_TRAINING_WORDS,
}


@lru_cache(maxsize=10_000)
def counts_training(name: str) -> bool:
    """Return True if the name denotes the length of training, such as epochs, max_steps, trainer.maxEpochs or num_iterations.

    All words of the name must concern the length, so warmup_steps, steps_per_epoch, eval_steps and step_size do not count.
    """
    words = words_of(name)
    units = [w for w in words if w in _LENGTH_WORDS]
    if units:
        others = [w for w in words if w not in _LENGTH_WORDS]
        plain = len(units) == 1 and (bool(others) or units[0] not in ("step", "iter", "iteration"))
        return plain and all(w in _COUNTING_WORDS for w in others)
    rest = [w for w in words if w not in _EXPOSURE_WORDS]
    return len(words) - len(rest) == 1 and bool(_TRAINING_WORDS & set(rest)) and all(w in _COUNTING_WORDS for w in rest)


def counts_epochs_of_training(name: str) -> bool:
    """Return True if the name denotes the length of training in epochs."""
    return counts_training(name) and "epoch" in name.lower()


def is_transformers_schedule_name(name: str) -> bool:
    """Return True if the name is the one that Transformers uses for the kind of learning-rate schedule. Study files use the
    same kinds of schedule as Transformers."""
    return words_of(name)[-3:] == ["lr", "scheduler", "type"]


def words_of(name: str) -> list[str]:
    """Split a name into lower-case words: trainer.maxEpochs becomes trainer, max, epochs."""
    return list(_words_of(name))


@lru_cache(maxsize=10_000)
def _words_of(name: str) -> tuple[str, ...]:
    return tuple(w for w in re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower()) if w)


_SCHEDULE_WORDS = frozenset(
    "decay schedule scheduler warmup min final end factor gamma multiplier mult scale exponent power cycles drop patience plateau "
    "reduce step steps epoch epochs milestones ratio policy mode type cosine cos auto find finder".split()
)


@lru_cache(maxsize=10_000)
def is_learning_rate(name: str) -> bool:
    """Return True if the name denotes a learning rate, but not a parameter of the learning-rate schedule."""
    words = set(words_of(name))
    return bool({"lr", "lr0", "learningrate"} & words or {"learning", "rate"} <= words) and not words & _SCHEDULE_WORDS


def scale_of_new_range(name: str, low: float, high: float, scale: Scale) -> Scale:
    """Return the scale of a new range of this hyperparameter: `scale`, unless its name suggests another scale.

    A learning rate has a log scale. Momentum and Adam's betas average over about 1 / (1 - value) steps. If this number of steps
    differs tenfold between the ends of the range, the scale is reverse-log, because on a linear scale few trials would lie near
    1.
    """
    if is_learning_rate(name) and low > 0:
        return "log"
    averages = _word_sequences(name) & _AVERAGING_NAMES and "oneminus" not in _word_sequences(name)
    return "reverse-log" if averages and low >= 0 and 10 * (1 - high) <= 1 - low and high < 1 else scale
