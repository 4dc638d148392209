"""Narrows the ranges of the next study to where its best setting lies: what is known to be worse needs no trials.

A range is narrowed by the model of all trials (`advisor.computed.space.promising`), also if no rule found it too wide. Ranges that
a finding set, and those of special studies and adaptive searches, stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection

from advisor.computed.space import promising
from advisor.model.spec import StudySpec
from advisor.model.study import Study
from advisor.planning import roles
from advisor.planning.base import validate
from advisor.planning.designs import explore


def narrowed(study: Study, spec: StudySpec, keep: Collection[str]) -> StudySpec:
    """Return the study with ranges that leave out what the trials of `study` rule out, except for the hyperparameters in `keep`."""
    if spec.probe is not None or spec.settings or spec.sampler.kind == "adaptive":
        return spec
    ranges = {name: ends for name, ends in promising.ranges(study, spec).items() if name not in keep}
    whole = spec
    for name, (low, high) in ranges.items():
        old = spec.parameters[name]
        update = {"low": low, "high": high, "why": roles.why(name, old.role, _why(study, spec))}
        spec = spec.with_parameter(name, old.model_copy(update=update))
    if ranges and spec.trials and spec.goal == explore.goal(whole):
        spec = spec.model_copy(update={"goal": explore.goal(spec, ranges)})
    return validate(spec)


def _why(study: Study, spec: StudySpec) -> str:
    """Return why the ranges are narrower, as a clause."""
    fit = promising.model_of(study)
    assert fit is not None
    more = ", with more room because training changes" if promising.trains_otherwise(study, spec) else ""
    return f"{promising.LIES_HERE} of {fit.fitted} settings{more}"
