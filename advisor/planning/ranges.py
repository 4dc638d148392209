"""Narrows the ranges of the next study to the region that probably contains the best setting, because values known to be worse
need no trials.

The ranges come from a model of all trials (`advisor.computed.space.promising`), even if no rule found the current ranges too
wide. A range stays unchanged if a finding moved one of its ends outwards. Probes, studies with listed settings and studies after
an adaptive search keep all ranges. A learning-rate range also stays unchanged if the next study is the first to vary momentum,
because good learning rates depend on momentum.
"""

from __future__ import annotations

from collections.abc import Collection

from advisor.computed.space import promising
from advisor.computed.space.extension import round_inferred_range
from advisor.model.space import is_learning_rate, words_of_name
from advisor.model.spec import StudySpec
from advisor.model.study import Study
from advisor.model.words import capitalise
from advisor.planning.base import validate_spec
from advisor.planning.designs import explore
from advisor.planning.draft import SpecPart
from advisor.planning.goals import goal_with_new_range


def narrowed(study: Study, spec: StudySpec, keep: Collection[SpecPart]) -> StudySpec:
    """Return the next study with narrower ranges, without values that the trials of `study` rule out.

    keep: parts of the spec that findings set, such as the end of a range. If a finding narrowed one end of a range, the trials
    may still narrow both ends further.
    """
    if spec.probe is not None or spec.settings or study.spec.sampler.kind == "adaptive":
        return spec
    possible = {n: e for n, e in promising.narrower_ranges(study, spec).items() if not _varies_fixed_momentum(study, spec, n)}
    found = {name: _limit_ends_to_findings(study, spec, name, ends, keep) for name, ends in possible.items()}
    ranges = {n: ends for n, ends in found.items() if ends != (spec.parameters[n].low, spec.parameters[n].high)}
    whole, by_findings = spec, {name for name, _ in keep}
    for name, (low, high) in ranges.items():
        old = spec.parameters[name]
        why = _narrowing_reason(study, spec)
        why = f"{old.why.rstrip('.')}. {capitalise(why)}" if name in by_findings and old.why else why
        new = old.model_copy(update={"low": low, "high": high, "why": why})
        goal = goal_with_new_range(spec.goal, name, old, new) if name in by_findings else spec.goal
        spec = spec.with_parameter(name, new).model_copy(update={"goal": goal})
    if ranges and spec.trials and spec.goal == explore.goal(whole):
        spec = spec.model_copy(update={"goal": explore.goal(spec, ranges)})
    return validate_spec(spec)


def _varies_fixed_momentum(study: Study, spec: StudySpec, name: str) -> bool:
    """Return whether `name` is a learning rate and `spec` varies a momentum that was fixed in `study`, because good learning
    rates depend on momentum."""
    new = spec.searched.keys() & (study.spec.parameters.keys() - study.searched.keys())
    return is_learning_rate(name) and any("momentum" in words_of_name(n) for n in new)


def _limit_ends_to_findings(
    study: Study, spec: StudySpec, name: str, ends: tuple[float, float], keep: Collection[SpecPart]
) -> tuple[float, float]:
    """Return `ends`, unless findings changed the range of the hyperparameter. If findings only cut one end, return `ends`
    within this cut; otherwise, return the range that findings set."""
    now = spec.parameters[name]
    parts = {part for subject, part in keep if subject == name}
    if not parts:
        return ends
    assert now.low is not None
    assert now.high is not None
    low, high = (max(now.low, ends[0]), ends[1]) if parts == {"low"} else (ends[0], min(now.high, ends[1]))
    # In the next study, ends of inferred ranges are rounded outwards. Compare with the rounded ends, because no finding asked
    # for a change.
    old = round_inferred_range(study, name) if name in study.searched else now
    cut = old.numeric and old.contains(now.low) and old.contains(now.high)
    return (low, high) if cut and parts in ({"low"}, {"high"}) and low < high else (now.low, now.high)


def _narrowing_reason(study: Study, spec: StudySpec) -> str:
    """Return the reason for the narrower ranges, as a clause."""
    fit = promising.fit_response_model(study)
    assert fit is not None
    more = (
        ", widened somewhat, because the next study has other changes, too" if promising.trains_differently(study, spec) else ""
    )
    return f"{promising.LIES_HERE_REASON} of {fit.fitted_trial_count} settings{more}"
