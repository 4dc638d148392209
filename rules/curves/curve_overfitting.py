"""The rule `curve-overfitting`; its page is the docstring of the class."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np
from scipy.stats import false_discovery_control

from advisor.finding import (
    AddParameter,
    CurveEvidence,
    FigureEvidence,
    Finding,
    Goal,
    Mark,
    MissingData,
    SetRange,
)
from advisor.rule import Rule, Share
from advisor.space import as_number, hard_limits
from advisor.spec import Parameter
from advisor.stats import curve as curves
from advisor.study import Curve, Signal, Study, Trial

_Costs: TypeAlias = Callable[[Trial], Curve]
_TRAINING: tuple[Signal, ...] = ("train_objective", "train_eval_loss", "train_loss")
_REGULARISER = re.compile(
    r"drop_?out|drop_?path|stochastic_depth|weight_?decay|label_?smoothing|mixup|cutmix|augment|regulari[sz]"
    r"|(^|[^a-z])(wd|l1|l2|reg|drop|drop_rate)($|[^a-z])"
)
_USUAL = {"dropout": (0.0, 0.5, "linear"), "weight_decay": (1e-5, 0.1, "log")}


class CurveOverfitting(Rule):
    """Validation gets worse after its best while training still improves.

    ## What it looks at
    The validation curve of every feasible trial: how far the level of its end (the median of the last tenth) lies above the lowest
    level before. The lowest of many noisy levels is low by luck alone, so the p-value is multiplied by their number; the noise
    is read off the curve itself, also at the scale of these windows, so that slow wandering does not pass for a rise. A training
    metric (the objective's twin or a loss) must fall over the same steps and none may rise: validation that gets worse because
    training does is instability. The best trial of each scientific setting comes first, then all feasible trials. Where the
    objective is no loss, the validation loss is read second, because it often rises while accuracy does not.

    ## Why it matters
    Where trials overfit, the study prefers whatever hampers training, such as a tiny learning rate or a small model: that
    regularises by accident. Scientific settings compare fairly once each is regularised well. Where the regulariser itself is the
    scientific parameter and only its low settings overfit, nothing is wrong and the rule is quiet.

    ## What to do
    Search a regulariser (dropout, weight decay, label smoothing) in the next round, or widen the upper side of the one that is
    searched; prefer that to a smaller model.

    ## How sure
    Confidence is 1 minus the p-value, corrected for the number of trials (Benjamini-Hochberg); where no training metric was
    logged, 0.6 of that, since instability cannot be excluded. Simulated curves that fall and flatten, with white or autocorrelated
    noise (lag-1 correlation up to 0.6), raise a finding in less than 5 % of the studies. A trial needs 6 evaluations or more.

    Example: "val/loss of the best trial trial-3 rises from 0.356 at step 2800 to 0.484 at its end while train/loss still falls."
    """

    playbook: ClassVar[str] = "Examining the training curves"
    goal: ClassVar[Goal] = "regularisation"

    material: Share = 0.02
    """Smallest rise worth a word, as a share of the distance between a curve's highest and lowest level. Our choice."""
    false_alarms: Share = 0.05
    """How often, per study, chance alone may raise a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        """At most one finding: of the objective, else of the validation loss."""
        trials = study.ranked()
        if not trials:
            raise MissingData("no trial ended with a finite objective, so no curve can be judged")
        leaders = _leaders(study, trials)
        looks = _looks(study)
        assessed = False
        for metric, costs in looks:
            readings = [r for t in trials if (r := self._read(study, t, costs(t).finite)) is not None]
            assessed = assessed or bool(readings)
            hits = self._overfitting(readings, leaders, len(looks))
            if hits and not _only_low_settings(study, {h.trial.index for h in hits}, trials):
                yield self._report(study, metric, hits, leaders, len(trials))
                return
        if not assessed:
            raise MissingData(
                f"no trial has {curves.FEWEST} evaluations of {study.spec.objective.metric}; evaluate that often or more"
            )

    def _read(self, study: Study, trial: Trial, curve: Curve) -> _Reading | None:
        rise = curves.end_rise(curve.values)
        if rise is None:
            return None
        if rise.p > self.false_alarms or rise.share < self.material:
            return _Reading(trial, curve, rise, 1.0)
        p, training = _training_falls(study, trial, int(curve.steps[rise.best]))
        return _Reading(trial, curve, rise, max(p, rise.p), training)

    def _overfitting(self, readings: list[_Reading], leaders: list[Trial], looks: int) -> list[_Reading]:
        """The readings that overfit beyond chance: the leaders among themselves first, then the others."""
        first = {t.index for t in leaders}
        hits: list[_Reading] = []
        for leading in (True, False):
            group = [r for r in readings if (r.trial.index in first) is leading]
            if group:
                corrected = false_discovery_control([r.p for r in group]) * 2 * looks
                hits += [r.at(p) for r, p in zip(group, corrected, strict=True) if p <= self.false_alarms]
        return hits

    def _report(self, study: Study, metric: str, hits: list[_Reading], leaders: list[Trial], feasible: int) -> Finding:
        top = hits[0]
        leading = top.trial in leaders
        of_objective = metric == study.spec.objective.metric
        start, end = (
            r if not of_objective else study.objective_value(r) for r in (top.rise.best_level, top.rise.level)
        )
        meanwhile = f"while {top.training} still improves" if top.training else "(no training metric was logged)"
        who = "the best trial" if top.trial == leaders[0] else "the best trial of its setting," if leading else "trial"
        message = (
            f"{metric} of {who} {top.trial.name} gets worse, from {start:.4g} at step {top.step} to {end:.4g} at its end, "
            f"{meanwhile}"
        )
        if feasible > 1:
            message += f"; {len(hits)} of {feasible} feasible trials overfit"
        if not of_objective:
            message += f", though {study.spec.objective.metric} does not get worse beyond noise"
        changes = tuple(_changes(study))
        names = " and ".join(c.name if isinstance(c, AddParameter) else c.parameter for c in changes)
        figures = (
            ("evaluations of the trial", str(len(top.curve))),
            ("rise, as a share of the curve's range", f"{top.rise.share:.1%} (told from {self.material:.0%})"),
            ("rise over its standard error", f"{top.rise.height:.3g} / {top.rise.error:.2g}"),
            ("p-value, corrected for steps and trials", f"{top.p:.2g} (fires up to {self.false_alarms:g})"),
            ("feasible trials that overfit", f"{len(hits)} of {feasible}"),
        )
        shown = [h.trial for h in hits[:5]]
        return self.finding(
            message + ".",
            action=f"Search {names or 'another regulariser'} with room for more regularisation before choosing a smaller model.",
            severity="warning" if leading and of_objective else "note",
            confidence=(1 - top.p) * (1.0 if top.training else 0.6),
            subject=metric,
            trials=[h.trial for h in hits],
            evidence=(
                CurveEvidence(
                    metrics=(metric, top.training) if top.training else (metric,),
                    caption=f"{metric} gets worse by {top.rise.share:.0%} of its range after step {top.step}.",
                    trials=tuple(t.id for t in shown),
                    marks=tuple(Mark(trial=h.trial.id, step=h.step, label="best level") for h in hits[:5]),
                ),
                FigureEvidence(rows=figures),
            ),
            changes=changes,
        )


@dataclass(frozen=True)
class _Reading:
    trial: Trial
    curve: Curve
    rise: curves.Rise
    p: float
    training: str | None = None
    """The training metric that falls after the best step, if one was logged."""

    @property
    def step(self) -> int:
        return int(self.curve.steps[self.rise.best])

    def at(self, p: float) -> _Reading:
        return _Reading(self.trial, self.curve, self.rise, float(p), self.training)


def _looks(study: Study) -> list[tuple[str, _Costs]]:
    """Validation metrics to read, each with the costs of a trial: the objective, then the validation loss if it is another."""
    looks: list[tuple[str, _Costs]] = [(study.spec.objective.metric, study.cost_curve)]
    loss = study.signals.get("valid_loss")
    if loss is not None and loss != study.spec.objective.metric:
        looks.append((loss, lambda trial: study.curve(trial, "valid_loss")))
    return looks


def _leaders(study: Study, ranked: list[Trial]) -> list[Trial]:
    """The best trial of each setting of the scientific choices, best first; the best trial where there are none."""
    names = [n for n, p in study.searched.items() if p.role == "scientific" and not p.numeric]
    best: dict[tuple[object, ...], Trial] = {}
    for trial in ranked:
        best.setdefault(tuple(trial.params.get(n) for n in names), trial)
    return list(best.values())


def _training_falls(study: Study, trial: Trial, step: int) -> tuple[float, str | None]:
    """(p-value of training falling since the step, the metric that shows it): 1 where one rises, 0 and None without any."""
    found: list[tuple[float, str]] = []
    for signal in _TRAINING:
        curve = study.curve(trial, signal).finite
        if signal == "train_objective" and not study.minimize:
            curve = -curve
        change = curves.change_since(curve.values, int(np.searchsorted(curve.steps, step)))
        if change is not None:
            found.append((1.0 if change.p_rise < 0.01 else change.p_fall, study.signals[signal]))
            if change.p_rise < 0.01:
                return found[-1]
    if not found:
        return 0.0, None
    p, metric = min(found)
    return min(1.0, p * len(found)), metric


def _only_low_settings(study: Study, overfit: set[int], feasible: Sequence[Trial]) -> bool:
    """Whether a scientific regulariser cures it: no trial in the upper half of its range overfits, and some lie there."""
    for name, parameter in study.searched.items():
        if parameter.role != "scientific" or not _REGULARISER.search(name.lower()):
            continue
        upper = {t.index for t, x in zip(feasible, study.positions(name, feasible), strict=True) if x > 0.5}
        if upper and not upper & overfit:
            return True
    return False


def _changes(study: Study) -> Iterator[AddParameter | SetRange]:
    """Widen the regularisers that are searched, else search those that are not."""
    why = "Trials overfit: validation got worse while training improved, so leave room for more regularisation."
    searched = [n for n in study.searched if _REGULARISER.search(n.lower())]
    widened = [c for name in searched if (c := _widened(study.spec.parameters[name], name, why)) is not None]
    if widened:
        yield from widened
        return
    for name, (low, high, scale) in _USUAL.items():
        if name not in searched:
            known = next((n for n in study.spec.parameters if name in n.lower().replace("-", "_")), name)
            domain = Parameter(role="nuisance", type="float", low=low, high=high, scale=scale, why=why)
            yield AddParameter(name=known, parameter=domain)


def _widened(parameter: Parameter, name: str, why: str) -> SetRange | None:
    """The range with its upper side a decade (log) or as much again (linear) further up, short of what is possible."""
    numbers = [as_number(v) for v in parameter.options] if not parameter.numeric else [parameter.low, parameter.high]
    ends = [n for n in numbers if n is not None and np.isfinite(n)]
    if parameter.type == "bool" or len(ends) < max(2, len(numbers)):
        return None
    low, high = min(ends), max(ends)
    log = parameter.scale == "log" or (not parameter.numeric and 0 < 10 * low <= high)
    wider = min(high * 10 if log else high + (high - low), 0.9 * hard_limits(name, parameter.type)[1])
    if not high < wider < np.inf:
        return None
    return SetRange(parameter=name, low=low, high=wider, scale="log" if log else "linear", why=why)
