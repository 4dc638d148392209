"""Trials of earlier rounds as data for a later one: those that might as well be trials of it.

A trial of an earlier round counts where it lies in the later round's space, trained for as long, and nothing that was noted of it
says that the code, the data or the training was another one. Whether it failed makes no difference.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from advisor.model.space import Value, same
from advisor.model.spec import Parameter, StudySpec
from advisor.model.study import Curve, CurveBlock, Study, Trial
from advisor.system import spill

OUTSIDE = "lie outside its space"

_SAME: Mapping[str, str] = {
    "git_commit": "come from another version of the code",
    "n_train": "trained on other data",
    "n_valid": "were evaluated on other data",
    "model": "trained another model",
    "optimizer": "used another optimizer",
    "batch_size": "used another batch size",
    "schedule": "used another learning-rate schedule",
    "precision": "computed in another precision",
    "norm_order": "trained another model",
}
"""Facts that must agree where both rounds noted them, and what is said where they do not."""
_ABSENT_IS_NONE = {"grad_clip_norm": "clipped gradients otherwise", "grad_clip_value": "clipped gradients otherwise"}
"""The same, of facts that the hook notes only where there is something to note."""


@dataclass(frozen=True)
class Pooled:
    """A study together with the trials of earlier rounds that count as data for it."""

    study: Study
    counted: tuple[int, ...]
    """How many trials of each earlier round."""
    said: tuple[str, ...]
    """Which trials count, which do not and why, a sentence for each earlier round."""


def pool(own: Study, earlier: Sequence[Study]) -> Pooled:
    """The study with the trials of the earlier rounds (the first one first) that lie in its space; they come before its own."""
    chosen: list[tuple[Study, Trial]] = []
    counted, said = [], []
    facts = _facts(own)
    for number, study in zip(numbers([*earlier, own]), earlier, strict=False):
        taken, left = _sorted(own, study, facts)
        chosen += [(study, _marked(study, trial, number)) for trial in taken]
        counted.append(len(taken))
        said.append(_sentence(study, number, len(taken), left))
    if not chosen:
        return Pooled(own, tuple(counted), tuple(said))
    every = [*chosen, *((own, _marked(own, trial, None)) for trial in own.trials)]
    curves = {name: [s.metric(t, name) for s, t in every] for name in own.metrics}
    fits = spill.fits_in_memory([len(c) for each in curves.values() for c in each])
    blocks = {name: _joined(each, fits=fits) for name, each in curves.items()}
    trials = tuple(replace(trial, index=i) for i, (_, trial) in enumerate(every))
    return Pooled(replace(own, trials=trials, metrics=blocks), tuple(counted), tuple(said))


def numbers(studies: Sequence[Study]) -> list[int]:
    """The numbers of rounds, as their files say where these ascend; else their places from 1 on."""
    own = [s.spec.round for s in studies]
    ascending = all(a < b for a, b in pairwise(own))
    return own if ascending else list(range(1, len(studies) + 1))


def _marked(study: Study, trial: Trial, number: int | None) -> Trial:
    name = trial.name if number is None else f"{trial.name} (round {number})"
    return replace(trial, name=name, round=number, facts={"study": study.name, **trial.facts})


def _joined(curves: Sequence[Curve], *, fits: bool) -> CurveBlock:
    offsets = np.cumsum([0, *(len(c) for c in curves)]).astype(np.int64)
    columns = tuple(np.concatenate([getattr(c, name) for c in curves]) for name in ("steps", "values", "times"))
    steps, values, times = spill.offload(columns, fits=fits)
    return CurveBlock(steps, values, times, offsets)


# --- which trials count -----------------------------------------------------------------------------------------------------------


def _sorted(own: Study, study: Study, facts: Mapping[str, str | None]) -> tuple[list[Trial], Counter[str]]:
    """The trials that count, and why how many others do not."""
    ended = [t for t in study.trials if study.ended[t.index]]
    if (why := _incomparable(own, study)) is not None:
        return [], Counter({why: len(ended)})
    reasons = [next(_reasons(own, study, trial, facts), None) for trial in ended]
    taken = [t for t, reason in zip(ended, reasons, strict=True) if reason is None]
    return taken, Counter(r for r in reasons if r is not None)


def _incomparable(own: Study, study: Study) -> str | None:
    """Why no trial of the study can count."""
    if study.spec.objective != own.spec.objective:
        return "were judged by another objective"
    if own.probe is not None or study.probe is not None:
        return "are of a probe" if study.probe is not None else "are no probe"
    if dict(study.spec.schedule or {}) != dict(own.spec.schedule or {}):
        return "used another learning-rate schedule"
    return None


def _reasons(own: Study, study: Study, trial: Trial, facts: Mapping[str, str | None]) -> Iterator[str]:
    yield from _out_of_space(own, study, trial)
    planned, wanted = study.planned_steps(trial), own.spec.max_train_steps
    if wanted is not None and math.isfinite(planned) and planned != wanted:
        yield f"trained for {planned:,.0f} steps instead of {wanted:,}"
    for name, said in {**_SAME, **_ABSENT_IS_NONE}.items():
        if name in facts and trial.facts.get(name) != facts[name] and _known(name, trial):
            yield said


def _out_of_space(own: Study, study: Study, trial: Trial) -> Iterator[str]:
    """What the trial has otherwise than the space; nothing where it lies in it."""
    params = own.spec.completed(trial.params)
    logged = {name for t in own.trials for name in t.params}
    for name, parameter in own.spec.parameters.items():
        if parameter.role == "derived" or not _exists(parameter, params):
            continue
        if name not in params:
            same = study.spec.parameters.get(name)
            if parameter.searched or (name in logged and (same is None or same.value != parameter.value)):
                yield f"had no {name}"
        elif not _allows(parameter, params[name]):
            yield OUTSIDE
    if own.spec.forbids(params) is not None:
        yield OUTSIDE


def lies_in(spec: StudySpec, trial: Mapping[str, Value]) -> bool:
    """Whether a setting {parameter: value} lies in what the study searches; parameters that it does not have do not matter."""
    params = spec.completed(trial)
    known = ((p, params[n]) for n, p in spec.searched.items() if n in params)
    return all(_allows(p, value) for p, value in known) and spec.forbids(params) is None


def _facts(own: Study) -> dict[str, str | None]:
    """The facts that all own trials that noted any agree on; None for one that they agree not to have."""
    hooked = [t for t in own.trials if "schema" in t.facts]
    found: dict[str, str | None] = {}
    for name in _SAME:
        values = {t.facts[name] for t in own.trials if name in t.facts}
        if len(values) == 1:
            found[name] = values.pop()
    for name in _ABSENT_IS_NONE:
        seen = {t.facts.get(name) for t in hooked}
        if len(seen) == 1:
            found[name] = seen.pop()
    return found


def _known(name: str, trial: Trial) -> bool:
    return name in trial.facts or (name in _ABSENT_IS_NONE and "schema" in trial.facts)


def _exists(parameter: Parameter, params: Mapping[str, Value]) -> bool:
    return all(k in params and same(params[k], v) for k, v in (parameter.when or {}).items())


def _allows(parameter: Parameter, value: Value) -> bool:
    if parameter.role == "fixed":
        return parameter.value is None or same(value, parameter.value)
    return parameter.allows(value)


# --- what is said of it -----------------------------------------------------------------------------------------------------------


def _sentence(study: Study, number: int, taken: int, left: Counter[str]) -> str:
    total = taken + left.total()
    if not total:
        return f"No trial of round {number} ({study.name}) has ended."
    others = [f"{n:,} {why}" for why, n in sorted(left.items(), key=lambda item: (-item[1], item[0]))]
    if not taken:
        return f"No trial of round {number} ({study.name}) counts as data for this one: {', '.join(others)}."
    of = (
        f"All {total:,} trials"
        if taken == total > 1
        else f"{taken:,} of the {total:,} trials"
        if total > 1
        else "The one trial"
    )
    lie = "lies in this space and counts as data" if taken == 1 else "lie in this space and count as data"
    return f"{of} of round {number} ({study.name}) {lie}" + (f"; {', '.join(others)}" if others else "") + "."
