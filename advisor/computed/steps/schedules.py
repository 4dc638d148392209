"""Finds the learning-rate schedules of trials from logged facts, hyperparameters and logged learning rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.computed import computed
from advisor.computed.curves.good_trials import good_trials
from advisor.model.space import FloatArray, as_number, words_of_name
from advisor.model.study import Curve, Study, Trial
from advisor.model.words import count

MIN_LOGGED_RATES = 5
"""Minimum number of logged learning rates that show a schedule."""
_MIN_LOGGED_TRAINING_SHARE = 0.5
"""Minimum share of the training that logged learning rates must cover to show the schedule."""
_MAX_CONSTANT_RATE_VARIATION = 0.01
"""Maximum variation of a constant learning rate, as a share of its peak. Logs round values, so the limit is not 0."""
_MIN_STAIR_FALL = 0.1
"""Minimum relative fall between two successive logged learning rates at a stair of a staircase schedule."""
_MIN_PEAK_LEARNING_RATE = 1e-300
"""Minimum peak learning rate by which other learning rates can be divided without overflow."""
_SCHEDULE_WORDS = frozenset(
    "lr learning rate scheduler schedule decay annealing type name kind class optimizer optim train training trainer".split()
)
_NO_SCHEDULE_WORDS = frozenset(("none", "off", "no", "false", "null", ""))
MAX_CONSTANT_RATE_FALL = 0.1
"""Maximum fall of a constant learning rate, as a share of its peak."""
MAX_DECAYED_RATE_SHARE = 0.05
"""Maximum learning rate, as a share of its peak, that counts as decayed to nearly zero. Our choice."""
_FINAL_PHASE_WORDS = frozenset("cooldown warmdown".split())
"""Words for the length of a final phase in which the learning rate falls."""
_RATE_DECAY_WORDS = frozenset("decay annealing schedule scheduler".split())
"""Words in names of hyperparameters that describe how the learning rate falls."""
_SCHEDULE_LENGTH_WORDS = frozenset("fraction ratio share steps step epochs epoch iters iterations".split())
"""Words in names of hyperparameters that set the length of a phase of a schedule."""
_OTHER_DECAY_WORDS = frozenset("weight momentum ema epsilon temperature exploration clip".split())
"""Words in names of hyperparameters for the decay of quantities other than the learning rate."""
_SCHEDULE_KINDS = ("plateau", "cosine", "linear", "exponential", "polynomial", "step", "cyclic", "constant")


@dataclass(frozen=True, slots=True)
class Schedule:
    """The learning-rate schedule of one trial."""

    trial: Trial
    logged_kind: str | None
    """Kind of schedule after the warmup, as in `advisor.contract.TAG_SCHEDULE`; None if neither logs nor study file name it."""
    rates: Curve
    """Logged finite learning rates; may be empty."""

    @property
    def is_constant(self) -> bool | None:
        """True if the learning rate never falls after it has reached its peak; None if unknown."""
        if self.logged_kind == "plateau":
            return False
        if len(self.rates) < MIN_LOGGED_RATES:
            return None if self.logged_kind is None else self.logged_kind == "constant"
        steps, share = self.rates.steps, self.shares_of_peak
        first_peak_index = int(np.argmax(share >= 1 - _MAX_CONSTANT_RATE_VARIATION))
        if (share[first_peak_index:] < 1 - _MAX_CONSTANT_RATE_VARIATION).any():
            return False
        return True if 2 * (steps[-1] - steps[first_peak_index]) >= steps[-1] - steps[0] else None

    @property
    def shares_of_peak(self) -> FloatArray:
        return self.rates.values / max(float(self.rates.values.max()), _MIN_PEAK_LEARNING_RATE)

    def last_peak_step(self, last: int) -> float:
        """Return the last step, at most `last`, at the peak learning rate. NaN if the schedule is unknown; 0 if the learning
        rate is known to change but was not logged."""
        if len(self.rates) >= MIN_LOGGED_RATES and self.rates.values.max() > _MIN_PEAK_LEARNING_RATE:
            steps, share = self.rates.steps, self.shares_of_peak
            first = int(np.argmax(share >= 1 - MAX_CONSTANT_RATE_FALL))
            falls = np.flatnonzero(share[first:] < 1 - MAX_CONSTANT_RATE_FALL)
            if len(falls):
                peaks = np.flatnonzero(share[: first + falls[0]] >= 1 - _MAX_CONSTANT_RATE_VARIATION)
                return float(min(steps[peaks[-1]], last)) if len(peaks) else 0.0
            if steps[-1] >= (1 - MAX_CONSTANT_RATE_FALL) * last:
                return float(last)
        if self.logged_kind is None:
            return math.nan
        return float(last) if self.logged_kind == "constant" else 0.0

    def final_low_phase(self, limit: float) -> tuple[int, int] | None:
        """Return (last step at the peak, first step of the final phase below `limit` times the peak); None without one."""
        if len(self.rates) < MIN_LOGGED_RATES or not self.rates.values.max() > _MIN_PEAK_LEARNING_RATE:
            return None
        indices_above_limit = np.flatnonzero(self.shares_of_peak >= limit)
        if int(indices_above_limit[-1]) == len(self.rates) - 1:
            return None
        last_peak_index = int(np.flatnonzero(self.shares_of_peak >= 1 - _MAX_CONSTANT_RATE_VARIATION)[-1])
        return int(self.rates.steps[last_peak_index]), int(self.rates.steps[indices_above_limit[-1] + 1])

    def stair_fall_steps(self) -> FloatArray:
        """Return the steps, (n,), at which a staircase schedule lowers the learning rate; empty for other schedules."""
        if len(self.rates) < MIN_LOGGED_RATES:
            return np.empty(0)
        first_peak_index = int(np.argmax(self.shares_of_peak >= 1 - _MAX_CONSTANT_RATE_VARIATION))
        rates_from_peak = np.maximum(self.rates.values[first_peak_index:], _MIN_PEAK_LEARNING_RATE)
        relative_changes = rates_from_peak[1:] / rates_from_peak[:-1] - 1
        is_fall = relative_changes <= -_MIN_STAIR_FALL
        is_flat = np.abs(relative_changes) <= _MAX_CONSTANT_RATE_VARIATION
        if not (is_fall | is_flat).all() or 4 * is_fall.sum() > len(relative_changes):
            return np.empty(0)
        return self.rates.steps[first_peak_index + 1 :][is_fall].astype(np.float64)


@computed
def read_schedule(study: Study, trial: Trial) -> Schedule:
    rates, cost = study.curve(trial, "learning_rate").finite, study.cost_curve(trial)
    name = _logged_schedule_kind(trial) or str((study.spec.schedule or {}).get("kind", ""))
    kind = parse_schedule_kind(name) if name else None
    return Schedule(trial, kind, Curve.empty() if _do_rates_end_early(rates, cost) else rates)


def _do_rates_end_early(rates: Curve, cost: Curve) -> bool:
    """Return True if learning rates were logged only for an early part of training. Compare times, if known, because steps of
    learning rates may have another unit than steps of costs."""
    if not len(rates) or not len(cost):
        return False
    has_times = math.isfinite(rates.times[-1] * cost.times[-1])
    rates_end, cost_end = (c.times[-1] if has_times else c.steps[-1] for c in (rates, cost))
    return bool(rates_end < _MIN_LOGGED_TRAINING_SHARE * cost_end)


def reason_schedule_unknown(study: Study, trials: Sequence[Trial]) -> str:
    """Return a clause that says why logged learning rates do not show the schedules of the trials; empty if any rates do."""
    if any(len(read_schedule(study, t).rates) >= MIN_LOGGED_RATES for t in trials):
        return ""
    rate_curves = [c for t in trials if len(c := study.curve(t, "learning_rate").finite)]
    if not rate_curves:
        return "no good trial logged its learning rate"
    max_points = max(len(c) for c in rate_curves)
    if max_points < MIN_LOGGED_RATES:
        return f"no good trial logged more than {count(max_points, 'learning rate')}, and a schedule needs {MIN_LOGGED_RATES}"
    last_logged_step = max(int(c.steps[-1]) for c in rate_curves)
    return f"the good trials logged their learning rate up to step {last_logged_step:,} only, far from the end of training"


def needs_no_schedule(trial: Trial) -> bool:
    """Return True if the trial's optimizer is designed to work without a learning-rate schedule."""
    optimizer_names = [trial.facts.get("optimizer", ""), *(str(v) for n, v in trial.params.items() if "optim" in n.lower())]
    return any("schedulefree" in name.lower().replace("_", "").replace("-", "") for name in optimizer_names)


def is_schedule_known(study: Study, trial: Trial) -> bool:
    """Return True if enough learning rates, or the kind of schedule, were logged."""
    return len(study.curve(trial, "learning_rate").finite) >= MIN_LOGGED_RATES or bool(_logged_schedule_kind(trial))


def _logged_schedule_kind(trial: Trial) -> str:
    schedule_name = str(trial.json_fact("schedule", dict).get("kind", ""))
    for name, value in trial.params.items():
        if not schedule_name and isinstance(value, str | bool) and (words := set(words_of_name(name))) <= _SCHEDULE_WORDS:
            is_decay_kind = words & {"decay", "annealing"} and parse_schedule_kind(str(value)) in _SCHEDULE_KINDS
            if words & {"scheduler", "schedule"} or is_decay_kind:
                schedule_name = str(value)
        elif not schedule_name and as_number(value) > 0:
            schedule_name = _schedule_kind_in_name(set(words_of_name(name)))
    return schedule_name


def _schedule_kind_in_name(words: set[str]) -> str:
    """Return the kind of schedule in the words of a hyperparameter's name, as in `cosine_decay_steps`, or "". Ignore its value,
    because a decay coefficient says little: `exponential_decay` is 1e-6 in some studies."""
    if _FINAL_PHASE_WORDS & words:
        return "other"
    if not (_RATE_DECAY_WORDS & words and _SCHEDULE_LENGTH_WORDS & words) or _OTHER_DECAY_WORDS & words:
        return ""
    return next((kind for kind in _SCHEDULE_KINDS if kind in words), "")


def possible_decay_names(trial: Trial) -> list[str]:
    """Return the hyperparameters of the trial that may lower the learning rate by an unknown amount."""
    words_by_name = {name: set(words_of_name(name)) for name, value in trial.params.items() if as_number(value) > 0}
    return [name for name, words in words_by_name.items() if _RATE_DECAY_WORDS & words and not _OTHER_DECAY_WORDS & words]


def parse_schedule_kind(name: str) -> str:
    """Return the kind of a schedule from its name in a script or study file: "constant" for "constant_with_warmup"."""
    name = name.lower().removeprefix("warmup+")
    if name in _NO_SCHEDULE_WORDS:
        return "constant"
    if "piecewise" in name:
        return "step"
    return next((kind for kind in _SCHEDULE_KINDS if kind in name), "constant" if "const" in name else "other")


def schedules_of_good_trials(study: Study, reach: float, best: int) -> list[Schedule]:
    return [read_schedule(study, trial) for trial in good_trials(study, reach)[:best]]


def evaluations_after_decay(study: Study, trial: Trial, curve: Curve) -> int:
    """Return the number of last evaluations at which the learning rate has decayed to nearly zero."""
    rate_curve = read_schedule(study, trial).rates
    if len(rate_curve) < MIN_LOGGED_RATES or not rate_curve.values.max() > 0:
        return 0
    undecayed_steps = rate_curve.steps[rate_curve.values > MAX_DECAYED_RATE_SHARE * rate_curve.values.max()]
    return int((curve.steps > undecayed_steps[-1]).sum()) if undecayed_steps[-1] < rate_curve.steps[-1] else 0


def final_rate_share(study: Study, trial: Trial) -> float:
    """Return the final learning rate of the trial as a share of its peak; NaN if no learning rate was logged at the end."""
    rate_values = read_schedule(study, trial).rates.values
    return float(rate_values[-1] / rate_values.max()) if len(rate_values) > 1 and rate_values.max() > 0 else math.nan
