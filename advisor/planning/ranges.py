"""Narrows the ranges of the next study to where its best setting lies: what is known to be worse needs no trials.

A range is narrowed by the model of all trials (`advisor.computed.space.promising`), also if no rule found it too wide. Ranges that
a finding set, and those of special studies and adaptive searches, stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection

from advisor.computed.space import promising
from advisor.model.spec import StudySpec
from advisor.model.study import Study


def narrowed(study: Study, spec: StudySpec, keep: Collection[str]) -> StudySpec:
    """Return the study with ranges that leave out what the trials of `study` rule out, except for the hyperparameters in `keep`."""
    if spec.probe is not None or spec.settings or spec.sampler.kind == "adaptive":
        return spec
    for name, (low, high) in promising.ranges(study, spec).items():
        old = spec.parameters[name]
        if name not in keep:
            why = "; ".join(filter(None, [(old.why or "").partition("; ")[0], _why(study, spec)]))
            spec = spec.with_parameter(name, old.model_copy(update={"low": low, "high": high, "why": why}))
    return spec


def _why(study: Study, spec: StudySpec) -> str:
    """Return why the ranges are narrower, as a clause."""
    results = promising.read(study)
    assert results is not None
    at = "" if results.step is None else f", compared at step {results.step:,.0f}"
    more = ", with more room because training changes" if promising.trains_otherwise(study, spec) else ""
    count = len(results.trials)
    return f"the best value lies here with at least 90 % probability, by a model of all {count} settings{at}{more}"
