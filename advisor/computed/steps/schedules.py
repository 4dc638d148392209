"""Finds the learning-rate schedules of trials in logged facts, hyperparameters and logged learning rates."""

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
"""Maximum variation of a constant learning rate, as a share of its peak, because logs round."""
_MIN_STAIR_FALL = 0.1
"""Minimum relative fall between two logged learning rates for a step of a staircase."""
_MIN_PEAK_LEARNING_RATE = 1e-300
"""Minimum peak by which other rates can be divided without overflow."""
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
    """Kind of schedule after the warmup, as in `advisor.contract.TAG_SCHEDULE`; None if neither logs nor study file state it.
    """
    rates: Curve
    """Logged finite learning rates; may be empty."""

    @property
    def is_constant(self) -> bool | None:
        """True if the learning rate never falls below its peak once it has reached it; None if unknown."""
        if self.logged_kind == "plateau":
            return False
        if len(self.rates) < MIN_LOGGED_RATES:
            return None if self.logged_kind is None else self.logged_kind == "constant"
        steps, share = self.rates.steps, self.shares_of_peak
        first = int(np.argmax(share >= 1 - _MAX_CONSTANT_RATE_VARIATION))
        if (share[first:] < 1 - _MAX_CONSTANT_RATE_VARIATION).any():
            return False
        return True if 2 * (steps[-1] - steps[first]) >= steps[-1] - steps[0] else None

    @property
    def shares_of_peak(self) -> FloatArray:
        return self.rates.values / max(float(self.rates.values.max()), _MIN_PEAK_LEARNING_RATE)

    def last_peak_step(self, last: int) -> float:
        """Return the last step, at most `last`, at the peak learning rate; NaN if the schedule is unknown, 0 if the rate is
        known to change but was not logged."""
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
        """Return (last step at the peak, first step of the final phase below `limit` times the peak); None if the final rate is
        not below."""
        if len(self.rates) < MIN_LOGGED_RATES or not self.rates.values.max() > _MIN_PEAK_LEARNING_RATE:
            return None
        above_limit = np.flatnonzero(self.shares_of_peak >= limit)
        if int(above_limit[-1]) == len(self.rates) - 1:
            return None
        last_peak = int(np.flatnonzero(self.shares_of_peak >= 1 - _MAX_CONSTANT_RATE_VARIATION)[-1])
        return int(self.rates.steps[last_peak]), int(self.rates.steps[above_limit[-1] + 1])

    def stair_fall_steps(self) -> FloatArray:
        """Return the steps, (n,), at which a staircase schedule lowers the learning rate; empty for other schedules."""
        if len(self.rates) < MIN_LOGGED_RATES:
            return np.empty(0)
        first = int(np.argmax(self.shares_of_peak >= 1 - _MAX_CONSTANT_RATE_VARIATION))
        values = np.maximum(self.rates.values[first:], _MIN_PEAK_LEARNING_RATE)
        moves = values[1:] / values[:-1] - 1
        falls = moves <= -_MIN_STAIR_FALL
        is_flat = np.abs(moves) <= _MAX_CONSTANT_RATE_VARIATION
        if not (falls | is_flat).all() or 4 * falls.sum() > len(moves):
            return np.empty(0)
        return self.rates.steps[first + 1 :][falls].astype(np.float64)


@computed
def read_schedule(study: Study, trial: Trial) -> Schedule:
    rates, cost = study.curve(trial, "learning_rate").finite, study.cost_curve(trial)
    kind = _logged_schedule_kind(trial) or str((study.spec.schedule or {}).get("kind", ""))
    return Schedule(
        trial, parse_schedule_kind(kind) if kind else None, Curve.empty() if _do_rates_end_early(rates, cost) else rates
    )


def _do_rates_end_early(rates: Curve, cost: Curve) -> bool:
    """Return True if learning rates were logged only for an early part of training. They may count steps in other units than
    costs, so times are compared if known."""
    if not len(rates) or not len(cost):
        return False
    ends = [(c.times[-1] if math.isfinite(rates.times[-1] * cost.times[-1]) else c.steps[-1]) for c in (rates, cost)]
    return bool(ends[0] < _MIN_LOGGED_TRAINING_SHARE * ends[1])


def reason_schedule_unknown(study: Study, trials: Sequence[Trial]) -> str:
    """Return a clause that says why logged learning rates do not show the trials' schedules; empty if they do."""
    if any(len(read_schedule(study, t).rates) >= MIN_LOGGED_RATES for t in trials):
        return ""
    logged = [c for t in trials if len(c := study.curve(t, "learning_rate").finite)]
    if not logged:
        return "no good trial logged its learning rate"
    most = max(len(c) for c in logged)
    if most < MIN_LOGGED_RATES:
        return f"no good trial logged more than {count(most, 'learning rate')}, and a schedule needs {MIN_LOGGED_RATES}"
    last = max(int(c.steps[-1]) for c in logged)
    return f"the good trials logged their learning rate up to step {last:,} only, far from the end of training"


def needs_no_schedule(trial: Trial) -> bool:
    """Return True if the trial's optimizer is designed to work without a learning-rate schedule."""
    optimizers = [trial.facts.get("optimizer", ""), *(str(v) for n, v in trial.params.items() if "optim" in n.lower())]
    return any("schedulefree" in name.lower().replace("_", "").replace("-", "") for name in optimizers)


def is_schedule_known(study: Study, trial: Trial) -> bool:
    """Return True if logged learning rates, or a logged kind of schedule, show the trial's schedule."""
    return len(study.curve(trial, "learning_rate").finite) >= MIN_LOGGED_RATES or bool(_logged_schedule_kind(trial))


def _logged_schedule_kind(trial: Trial) -> str:
    """Return the kind of schedule that the trial's logged facts or hyperparameters name; empty if they name none."""
    kind = str(trial.json_fact("schedule", dict).get("kind", ""))
    for name, value in trial.params.items():
        if not kind and isinstance(value, str | bool) and (words := set(words_of_name(name))) <= _SCHEDULE_WORDS:
            decays = words & {"decay", "annealing"} and parse_schedule_kind(str(value)) in _SCHEDULE_KINDS
            if words & {"scheduler", "schedule"} or decays:
                kind = str(value)
        elif not kind and as_number(value) > 0:
            kind = _schedule_kind_in_name(set(words_of_name(name)))
    return kind


def _schedule_kind_in_name(words: set[str]) -> str:
    """Return the kind of schedule in the words of a name, as in `cosine_decay_steps`, or "". The hyperparameter's value is
    ignored, because a decay coefficient says little: `exponential_decay` is 1e-6 in some studies."""
    if _FINAL_PHASE_WORDS & words:
        return "other"
    if not (_RATE_DECAY_WORDS & words and _SCHEDULE_LENGTH_WORDS & words) or _OTHER_DECAY_WORDS & words:
        return ""
    return next((kind for kind in _SCHEDULE_KINDS if kind in words), "")


def possible_decay_names(trial: Trial) -> list[str]:
    """Return the hyperparameters of the trial that may lower the learning rate by an unknown amount."""
    positive = {name: set(words_of_name(name)) for name, value in trial.params.items() if as_number(value) > 0}
    return [name for name, words in positive.items() if _RATE_DECAY_WORDS & words and not _OTHER_DECAY_WORDS & words]


def parse_schedule_kind(text: str) -> str:
    """Return the kind of schedule for its name in a script or study file: "constant" for "constant_with_warmup"."""
    text = text.lower().removeprefix("warmup+")
    if text in _NO_SCHEDULE_WORDS:
        return "constant"
    if "piecewise" in text:
        return "step"
    return next((kind for kind in _SCHEDULE_KINDS if kind in text), "constant" if "const" in text else "other")


def schedules_of_good_trials(study: Study, reach: float, best: int) -> list[Schedule]:
    return [read_schedule(study, trial) for trial in good_trials(study, reach)[:best]]


def evaluations_after_decay(study: Study, trial: Trial, curve: Curve) -> int:
    """Return the number of last evaluations at which the learning rate has decayed to nearly zero."""
    rates = read_schedule(study, trial).rates
    if len(rates) < MIN_LOGGED_RATES or not rates.values.max() > 0:
        return 0
    high = rates.steps[rates.values > MAX_DECAYED_RATE_SHARE * rates.values.max()]
    return int((curve.steps > high[-1]).sum()) if high[-1] < rates.steps[-1] else 0


def final_rate_share(study: Study, trial: Trial) -> float:
    """Return the final learning rate of the trial as a share of its peak; NaN if none was logged at the end."""
    rates = read_schedule(study, trial).rates.values
    return float(rates[-1] / rates.max()) if len(rates) > 1 and rates.max() > 0 else math.nan
