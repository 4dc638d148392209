"""The rule `warmup-shortest`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from advisor.computed.space import failures
from advisor.computed.stability import instability, loss_blowups, warmups
from advisor.engine.rule import Count, Rule, Share
from advisor.model.change import Advise, Change, FixParameter, SetField, SetRange, SetSchedule
from advisor.model.evidence import FigureEvidence
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.space import as_number
from advisor.model.study import Study, Trial

LOWER = (instability.RAISE, math.sqrt(instability.RAISE))
"""Times the unstable learning rate that are tried where more of them failed: an order of magnitude, then half of one."""
TOLERANCE = 0.05
"""Of the rate that was tried: studies hold rounded ones."""


class WarmupShortest(Rule):
    """A study of warmups shows the shortest one with which the higher learning rate trains stably, or that none does.

    ## What it looks at
    The trials of a warmup study, which the advisor writes where training is unstable early: one learning rate far above the
    unstable one, warmups over several orders of magnitude. A trial is stable if it neither diverged nor learned nothing, and its
    loss did not rise instead of falling anywhere, beyond its noise. The shortest warmup counts from which on all longer ones are
    stable, too: a short one that got by while a longer one failed was lucky.

    ## Why it matters
    The warmup is what lets the training bear a learning rate that fails without it. Longer than needed, it only costs steps.

    ## What to do
    Put this warmup before the baseline's own schedule: `max_train_steps` grows by it, and grows until the warmup is 5 % of them
    where it is longer than that. Then search learning rates up to the one that it made possible. Where no warmup is enough for ten
    times the unstable rate, the same warmups are tried at three times it; and where that fails too, clip gradients at the rates
    that do train. Another optimizer may bear more; a lower learning rate is the last resort.

    ## How sure
    That trials trained or failed is a fact; whether a loss rose is tested as in `stability-early`, with the promised level shared
    among the trials. Confidence is the probability that one more trial with such a warmup trains (Jeffreys' prior): 0.75 where one
    length was stable, 0.83 where two were.

    *Example:* "warmup_steps 100 is the shortest with which learning_rate 3 trains stably; 10 is too short."
    """

    playbook: ClassVar[str] = "Learning rate warmup"
    goal: ClassVar[Goal] = "stability"
    probes: ClassVar[frozenset[str]] = frozenset({"warmup"})

    lasting: Count = 10
    """Steps for which a loss must stay high; as in `stability-early`."""
    material: Share = 0.1
    """Smallest rise, as a share of what the training gains below the first loss; as in `stability-early`."""
    long: Share = 0.05
    """Share of `max_train_steps` above which a warmup asks for more of them; the playbook's."""
    doubt: Share = 0.05
    """How often, per study, noise alone may call a stable trial unstable."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield what the study of warmups found."""
        name = warmups.parameter(study.spec.parameters)
        if study.probe != "warmup" or name is None:
            raise MissingData(
                "the trials are not a study of warmups; `stability-edge` and `stability-early` ask for one where it is needed"
            )
        tried = self._tried(study, name)
        if not tried:
            raise MissingData(
                "no trial of the warmup study ended without a crash; let the training take its warmup and repeat it"
            )
        rate = max(instability.rate_of(study, t.trial) for t in tried)
        unstable = [t.steps for t in tried if not t.stable]
        enough = [t for t in tried if t.stable and t.steps > max(unstable, default=-1)]
        yield self._found(study, name, rate, enough, unstable) if enough else self._none(study, name, rate, tried)

    def _tried(self, study: Study, name: str) -> list[_Tried]:
        """The trials that did not crash, shortest warmup first."""
        failed = failures.failures(study)
        ran = [t for t in study.trials if study.ended[t.index] and not failed.crashed[t.index]]
        starts = {t.index: loss_blowups.at_start(study, t, self.lasting) for t in ran}
        seen = [b for b in starts.values() if b is not None]
        rose = {b.trial.index for b in seen if b.p * len(seen) <= self.doubt and b.share >= self.material}
        tried = [_Tried(t, as_number(t.params.get(name)), not failed.any[t.index] and t.index not in rose) for t in ran]
        return sorted((t for t in tried if math.isfinite(t.steps)), key=lambda t: (t.steps, t.trial.index))

    def _found(
        self, study: Study, name: str, rate: float, enough: Sequence[_Tried], unstable: Sequence[float]
    ) -> Finding:
        length = int(enough[0].steps)
        said = f"{name} {length:,} is the shortest with which {_rate(study)} {rate:.3g} trains stably"
        shorter = f"; {max(unstable):,.0f} is too short" if unstable else ", of those that were tried"
        return self.finding(
            f"{said}{shorter}.",
            action=f"Warm up over {length:,} steps before the schedule, and search learning rates up to {rate:.3g}.",
            severity="note",
            confidence=(len(enough) + 0.5) / (len(enough) + 1),
            subject=name,
            trials=[t.trial for t in enough],
            evidence=self._evidence(enough, unstable),
            changes=self._before_baseline(study, name, rate, length, said),
        )

    def _before_baseline(self, study: Study, name: str, rate: float, length: int, said: str) -> tuple[Change, ...]:
        """The warmup before the baseline's own training."""
        changes: list[Change] = [
            FixParameter(parameter=name, value=length, why=said),
            SetSchedule(schedule={"warmup_steps": length}, why=said),
        ]
        baseline = study.spec.baseline
        searched = baseline.parameters.get(_rate(study)) if baseline else None
        if searched is not None and searched.low is not None and searched.low < rate:
            why = f"{said}, so rates up to it are searched"
            changes.append(SetRange(parameter=_rate(study), low=searched.low, high=rate, scale=searched.scale, why=why))
        if baseline is not None and baseline.max_train_steps is not None:
            steps = baseline.max_train_steps + length
            why = f"{length:,} steps of warmup come before the {baseline.max_train_steps:,} of the baseline"
            if length > self.long * steps:
                steps = math.ceil(length / self.long)
                why += f", and a warmup of more than {self.long:.0%} asks for a longer training"
            changes.append(SetField(field="max_train_steps", value=steps, why=why))
        return tuple(changes)

    def _none(self, study: Study, name: str, rate: float, tried: Sequence[_Tried]) -> Finding:
        longest = int(tried[-1].steps)
        changes: list[Change] = []
        baseline = study.spec.baseline
        searched = baseline.parameters.get(_rate(study)) if baseline else None
        unstable = _unstable(study, rate)
        lower = [times for times in LOWER if times < (1 - TOLERANCE) * rate / unstable]
        if baseline is not None and lower:
            return self._lower(study, name, rate, unstable, lower[0], longest, tried)
        if searched is not None and searched.low is not None and searched.high is not None:
            high = float(f"{unstable:.3g}")
            if searched.low < high < searched.high:
                why = f"No warmup of up to {longest:,} steps let {rate:.3g} train, so rates end where they failed without one"
                changes.append(
                    SetRange(parameter=_rate(study), low=searched.low, high=high, scale=searched.scale, why=why)
                )
        norms = instability.late_norms(study, [t.trial for t in tried])
        changes += instability.clip_changes(norms)
        changes.append(Advise(text="If clipping is not enough, try another optimizer; lower the learning rate last."))
        return self.finding(
            f"No {name} of up to {longest:,} lets {_rate(study)} {rate:.3g} train stably.",
            action="Clip gradients instead of a longer warmup; another optimizer may bear more.",
            severity="warning",
            confidence=(len(tried) + 0.5) / (len(tried) + 1),
            subject=name,
            trials=[t.trial for t in tried],
            evidence=self._evidence((), [t.steps for t in tried if not t.stable]),
            changes=changes,
        )

    def _lower(
        self, study: Study, name: str, rate: float, unstable: float, times: float, longest: int, tried: Sequence[_Tried]
    ) -> Finding:
        """No warmup allows so many times the unstable rate: fewer `times` may do."""
        said = f"No {name} of up to {longest:,} lets {_rate(study)} {rate:.3g} train stably"
        return self.finding(
            f"{said}.",
            action=f"Try the same warmups at {times * unstable:.3g}, {times:.2g} times {unstable:.3g}, which fails without one.",
            severity="note",
            confidence=(len(tried) + 0.5) / (len(tried) + 1),
            subject=name,
            trials=[t.trial for t in tried],
            evidence=self._evidence((), [t.steps for t in tried if not t.stable]),
            changes=instability.warmup_changes(unstable, times),
        )

    def _evidence(self, enough: Sequence[_Tried], unstable: Sequence[float]) -> tuple[FigureEvidence, ...]:
        return (
            FigureEvidence(
                rows=(
                    ("stable", ", ".join(f"{t.steps:,.0f}" for t in enough) or "none"),
                    ("unstable", ", ".join(f"{steps:,.0f}" for steps in unstable) or "none"),
                    (
                        "thresholds",
                        f"p {self.doubt:g}, rise {self.material:.0%} of the gain, {self.lasting} steps",
                    ),
                )
            ),
        )


@dataclass(frozen=True)
class _Tried:
    trial: Trial
    steps: float
    """Of warmup."""
    stable: bool


def _rate(study: Study) -> str:
    """The learning rate's name."""
    return instability.rate_name(study) or "the learning rate"


def _unstable(study: Study, rate: float) -> float:
    """The rate that failed without a warmup, as the study says; where it does not, an order of magnitude below the one tried."""
    unstable = (study.spec.starts_from or {}).get("unstable_learning_rate", math.nan)
    return unstable if unstable > 0 else rate / instability.RAISE
