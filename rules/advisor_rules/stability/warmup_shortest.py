from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from advisor.computed.space import failures
from advisor.computed.stability import clipping, instability, loss_blowups, warmups
from advisor.engine.rule import Count, Rule, Share
from advisor.model.change import Advise, Change, FixParameter, SetField, SetRange, SetSchedule
from advisor.model.evidence import FigureEvidence, table
from advisor.model.finding import Finding, MissingData
from advisor.model.learning_rate import peak_learning_rate, rate_name
from advisor.model.message import Message, Name, Number, Percent, join_items, say
from advisor.model.space import as_number
from advisor.model.study import Study, Trial
from advisor.model.words import plain_number

_RETRY_RATE_FACTORS = (instability.WARMUP_RATE_FACTOR, math.sqrt(instability.WARMUP_RATE_FACTOR))
"""Multiples of the unstable learning rate to try if a higher multiple was unstable even with a warmup."""
_RATE_TOLERANCE = 0.05
"""Maximum relative difference at which learning rates count as equal, because study files contain rounded values."""


class WarmupShortest(Rule):
    """A study of warmups shows the shortest warmup with which a higher learning rate trains stably, or that no warmup suffices.

    ## What it looks at
    The rule evaluates the trials of a warmup study, which the advisor writes if training is unstable early. All trials of this
    study use the same learning rate, far above the lowest unstable one, and their warmups span several orders of magnitude. A
    trial is stable if it learned and its loss neither diverged nor rose early. The result is the shortest stable warmup for
    which all longer warmups are stable too. If a short warmup is stable while a longer one failed, the success of the short one
    was luck.

    ## Why it matters
    The warmup stabilises a learning rate that fails without it. A warmup that is longer than needed only costs steps.

    ## What to do
    Put the shortest stable warmup before the baseline's own schedule. `max_train_steps` grows by the length of the warmup, and
    further if the warmup exceeds 5 % of the steps. Then search learning rates up to the rate that the warmup made stable. If no
    warmup suffices for ten times the unstable rate, try the same warmups at three times that rate. If the same warmups fail at
    this lower rate too, clip gradients at the stable rates; another optimizer sometimes tolerates higher rates. Lower the rate
    only as a last resort.

    ## How sure
    A rise of a loss is tested as in `stability-early`, with the significance level divided among the trials. Confidence is the
    probability that one more trial with such a warmup is stable (Jeffreys prior): 0.75 if one length was stable, 0.83 if two
    lengths were.
    """

    playbook = "Learning rate warmup"
    goal = "stability"
    probes = frozenset({"warmup"})

    lasting: Count = 10
    """Minimum number of steps for which an early rise of the loss must last; the same limit as in `stability-early`."""
    material: Share = 0.1
    """Minimum early rise of the loss, as a share of the loss's fall below its first value; the same limit as in
    `stability-early`."""
    long: Share = 0.05
    """Maximum length of the warmup, as a share of `max_train_steps`, at which training is not lengthened further; from the
    playbook."""
    doubt: Share = 0.05
    """Maximum probability, per study, that noise alone makes a stable trial count as unstable."""

    def check(self, study: Study) -> Iterator[Finding]:
        name = warmups.find_warmup_parameter(study.spec.parameters)
        if study.probe != "warmup" or name is None:
            raise MissingData(
                "the trials are not a study of warmups; `stability-edge` and `stability-early` request such a study if it is "
                "needed",
                needs="design",
            )
        trials = self._warmups_by_length(study, name)
        if not trials:
            raise MissingData(
                "no trial of the warmup study ended without a crash; make the training accept its warmup and repeat the study"
            )
        result = _WarmupTrials(study, name, max(peak_learning_rate(study, t.trial) for t in trials), trials)
        yield self._report_shortest_warmup(result) if result.stable_trials else self._report_no_stable_warmup(result)

    def _warmups_by_length(self, study: Study, name: str) -> list[_Warmup]:
        failed = failures.failure_masks(study)
        ended_trials = [t for t in study.trials if study.ended[t.index] and not failed.crashed[t.index]]
        starts = {t.index: loss_blowups.blowup_at_start(study, t, self.lasting) for t in ended_trials}
        blowups = [b for b in starts.values() if b is not None]
        unstable = {b.trial.index for b in blowups if b.p_value * len(blowups) <= self.doubt and b.share >= self.material}
        trials = [
            _Warmup(t, as_number(t.params.get(name)), not failed.has_failed[t.index] and t.index not in unstable)
            for t in ended_trials
        ]
        return sorted((t for t in trials if math.isfinite(t.steps)), key=lambda t: (t.steps, t.trial.index))

    def _report_shortest_warmup(self, result: _WarmupTrials) -> Finding:
        stable, unstable = result.stable_trials, result.unstable_lengths
        length = int(stable[0].steps)
        action = "Warm up over {length} steps before the schedule, and search learning rates up to {rate}."
        text = "The shortest {tested}warmup with which {rate} trains stably is {name} {length}.{shorter}"
        tested = "" if unstable else "tested "
        shorter = say(" A warmup of {steps} steps is too short.", steps=Number(max(unstable))) if unstable else ""
        return self.finding(
            say(text, tested=tested, rate=result.learning_rate_text, name=Name(result.name), length=length, shorter=shorter),
            action=say(action, length=length, rate=result.rate),
            severity="note",
            confidence=(len(stable) + 0.5) / (len(stable) + 1),
            subject=result.name,
            trials=[t.trial for t in stable],
            evidence=self._evidence(stable, unstable),
            changes=self._put_warmup_before_baseline(result, length),
        )

    def _put_warmup_before_baseline(self, result: _WarmupTrials, length: int) -> tuple[Change, ...]:
        why = f"A warmup of {length:,} steps is the shortest with which {result.learning_rate_text} trains stably"
        changes: list[Change] = [
            FixParameter(parameter=result.name, value=length, why=why),
            SetSchedule(schedule={"warmup_steps": length}, why=why),
        ]
        why = f"{result.learning_rate_text} trains stably with this warmup, so we search up to it"
        changes += result.range_ending_at(result.rate, why)
        baseline = result.study.spec.baseline
        if baseline is not None and baseline.max_train_steps is not None:
            steps = baseline.max_train_steps + length
            why = f"{length:,} steps of warmup come before the {baseline.max_train_steps:,} of the baseline"
            if length > self.long * steps:
                steps = math.ceil(length / self.long)
                why += f"; training is longer so that the warmup is at most {self.long:.0%} of it"
            changes.append(SetField(field="max_train_steps", value=steps, why=why))
        return tuple(changes)

    def _report_no_stable_warmup(self, result: _WarmupTrials) -> Finding:
        recorded_rate = (result.study.spec.starts_from or {}).get("unstable_learning_rate", math.nan)
        unstable = recorded_rate if recorded_rate > 0 else result.rate / instability.WARMUP_RATE_FACTOR
        lower_factors = [times for times in _RETRY_RATE_FACTORS if times < (1 - _RATE_TOLERANCE) * result.rate / unstable]
        should_retry = bool(lower_factors) and result.study.spec.baseline is not None
        if should_retry:
            text = "Try the same warmups at {rate}: {times} times {unstable}, which fails without a warmup."
            action = say(text, rate=lower_factors[0] * unstable, times=Number(lower_factors[0], 2), unstable=unstable)
            changes = instability.warmup_changes(unstable, lower_factors[0])
        else:
            action = say("Clip gradients instead of a longer warmup. If clipping is not enough, try another optimizer.")
            changes = _clip_and_limit_rates(result, unstable)
        trials, text = result.trials, "No {name} of up to {longest} lets {rate} train stably."
        return self.finding(
            say(text, name=Name(result.name), longest=int(trials[-1].steps), rate=result.learning_rate_text),
            action=action,
            severity="note" if should_retry else "warning",
            confidence=(len(trials) + 0.5) / (len(trials) + 1),
            subject=result.name,
            trials=[t.trial for t in trials],
            evidence=self._evidence((), result.unstable_lengths),
            changes=changes,
        )

    def _evidence(self, stable: Sequence[_Warmup], unstable: Sequence[float]) -> FigureEvidence:
        text = "p ≤ {p}, rise ≥ {rise} of the gain, for {steps} steps"
        limits = say(text, p=self.doubt, rise=Percent(self.material), steps=self.lasting)
        return table(
            ("stable", join_items(Number(t.steps) for t in stable) or "none"),
            ("unstable", join_items(map(Number, unstable)) or "none"),
            ("thresholds", limits),
        )


@dataclass(frozen=True)
class _Warmup:
    trial: Trial
    steps: float
    is_stable: bool


@dataclass(frozen=True)
class _WarmupTrials:
    study: Study
    name: str
    rate: float
    trials: Sequence[_Warmup]

    @property
    def unstable_lengths(self) -> list[float]:
        return [t.steps for t in self.trials if not t.is_stable]

    @property
    def stable_trials(self) -> list[_Warmup]:
        """Stable trials whose warmup is longer than every unstable warmup."""
        return [t for t in self.trials if t.is_stable and t.steps > max(self.unstable_lengths, default=-1)]

    @property
    def learning_rate_text(self) -> Message:
        return say("{name} {rate}", name=Name(rate_name(self.study) or "the learning rate"), rate=Number(self.rate))

    def range_ending_at(self, high: float, why: str, *, only_lower: bool = False) -> list[SetRange]:
        """Return the change that ends the baseline's range of learning rates at `high`; empty if the baseline searches no rate
        or only higher ones, or if `only_lower` and the range does not go beyond `high`."""
        name, baseline = rate_name(self.study) or "", self.study.spec.baseline
        old = baseline.parameters.get(name) if baseline else None
        if old is None or old.low is None or old.low >= high:
            return []
        if only_lower and (old.high is None or old.high <= high):
            return []
        return [SetRange(parameter=name, low=old.low, high=high, scale=old.scale, why=why)]


def _clip_and_limit_rates(result: _WarmupTrials, unstable: float) -> tuple[Change, ...]:
    why = (
        f"No warmup of up to {result.trials[-1].steps:,.0f} steps lets {plain_number(result.rate, 3)} train stably, so the range "
        "ends where training fails without a warmup"
    )
    norms = clipping.unclipped_gradient_norms(result.study)
    advice = "If clipping is not enough, try another optimizer. Lower the learning rate only as a last resort."
    return (
        *result.range_ending_at(float(f"{unstable:.3g}"), why, only_lower=True),
        *instability.clipping_changes(norms),
        Advise(text=advice),
    )
