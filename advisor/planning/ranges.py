"""Adapts the ranges of the next study: narrows them to the region that probably contains the best setting, and widens the range
of the learning rate if a better rate may lie outside it."""

from __future__ import annotations

from collections.abc import Collection
from typing import get_args

import numpy as np
from scipy.stats import spearmanr

from advisor.computed.decision import repeats
from advisor.computed.space import extension, failures, promising, sampler
from advisor.computed.space.extension import round_inferred_range
from advisor.model import parameter_kinds
from advisor.model.change import SetRange
from advisor.model.space import RangeSide, as_number, is_learning_rate, round_significant, words_of_name
from advisor.model.spec import Parameter, StudySpec
from advisor.model.study import Study, Trial
from advisor.model.usual_rates import HALF_DECADE
from advisor.model.words import capitalise, clean, plain_number, setting
from advisor.planning.base import validate_spec
from advisor.planning.designs import explore
from advisor.planning.draft import SpecPart
from advisor.planning.goals import goal_with_new_range

MAX_NEAR_BATCH_RATIO = 1.5
"""A trial is near the next study's batch size if the two batch sizes differ at most by this factor. Our choice."""
MIN_NEAR_BATCH_TRIALS = 3
"""Minimum number of trials with a result near the next study's batch size. With fewer trials, the best one would too often have
the lowest or highest learning rate by chance. Our choice."""
BEST_SETTINGS = 5
"""Number of best settings to examine; the study needs at least twice as many settings."""
MIN_BEST_SETTINGS_AT_END = 4
"""Minimum number of these settings, including the best one, that must lie in the outer part of the range. Our choice."""
OUTER_RANGE_SHARE = 1 / 3
"""Share of a learning-rate range, on its scale, that counts as the outer part at each end. Our choice."""


def narrowed(study: Study, spec: StudySpec, keep: Collection[SpecPart]) -> StudySpec:
    """Return the next study with narrower ranges, without values that the trials of `study` rule out, because values known to
    be worse need no trials.

    The ranges come from a model of all trials (`advisor.computed.space.promising`), even if no rule found the current ranges
    too wide. Probes, studies with listed settings and studies after an adaptive search keep all ranges. A learning-rate range
    also stays unchanged if the next study is the first to vary momentum, because good learning rates depend on momentum. keep:
    parts of the spec that findings set, such as the end of a range. If a finding narrowed one end of a range, the trials may
    still narrow both ends further; if it moved one outwards, the range stays."""
    if spec.probe is not None or spec.settings or study.spec.sampler.kind == "adaptive":
        return spec
    newly_searched = spec.searched.keys() & (study.spec.parameters.keys() - study.searched.keys())
    momentum_is_new = any("momentum" in words_of_name(n) for n in newly_searched)
    possible = {
        n: e for n, e in promising.narrower_ranges(study, spec).items() if not (momentum_is_new and is_learning_rate(n))
    }
    found = {name: _limit_ends_to_findings(study, spec, name, ends, keep) for name, ends in possible.items()}
    ranges = {n: ends for n, ends in found.items() if ends != (spec.parameters[n].low, spec.parameters[n].high)}
    whole, by_findings = spec, {name for name, _ in keep}
    fit = promising.fit_response_model(study) if ranges else None
    reason = f"{promising.LIES_HERE_REASON} of {fit.fitted_trial_count} settings" if fit is not None else ""
    if promising.trains_differently(study, spec):
        reason += ", widened somewhat, because the next study has other changes, too"
    for name, (low, high) in ranges.items():
        old = spec.parameters[name]
        why = f"{old.why.rstrip('.')}. {capitalise(reason)}" if name in by_findings and old.why else reason
        new = old.model_copy(update={"low": low, "high": high, "why": why})
        goal = goal_with_new_range(spec.goal, name, old, new) if name in by_findings else spec.goal
        spec = spec.with_parameter(name, new).model_copy(update={"goal": goal})
    if ranges and spec.trials and spec.goal == explore.goal(whole):
        spec = spec.model_copy(update={"goal": explore.goal(spec, ranges)})
    return validate_spec(spec)


def _limit_ends_to_findings(
    study: Study, spec: StudySpec, name: str, ends: tuple[float, float], keep: Collection[SpecPart]
) -> tuple[float, float]:
    """Return `ends`, limited to the cut if findings only cut one end; else the range that findings set, if any."""
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


def with_range_for_batch_size(study: Study, spec: StudySpec) -> StudySpec:
    """Return `spec`, with wider learning-rate ranges if it fixes a batch size that `study` searched and trials near this size
    suggest rates outside the ranges.

    The best learning rate grows with the batch size. A learning-rate range based on trials of all batch sizes can therefore be
    too low for a large batch size, or too high for a small one. If, among the trials near the new batch size, the best trial
    has the lowest or highest learning rate, the range is extended to half a decade beyond that rate. If the best learning rate
    grows with the square root of the batch size, it changes by this factor for ten times the batch size. The range stays if the
    study's best trial has a lower learning rate at a larger batch size, or a higher one at a smaller batch size."""
    fixed = [n for n in study.searched if parameter_kinds.is_batch_size(n) and n in spec.fixed_values]
    rates = [n for n, p in spec.searched.items() if is_learning_rate(n) and p.scale == "log" and n in study.searched]
    for size in fixed[:1] if spec.probe is None and not spec.settings else ():
        wanted = as_number(spec.parameters[size].value)
        least, most = wanted / MAX_NEAR_BATCH_RATIO, wanted * MAX_NEAR_BATCH_RATIO
        near = [t for t in study.trials if study.ended[t.index] and least <= as_number(t.params.get(size)) <= most]
        successful = [t for t in study.ranked() if t in near]
        for rate in rates if len(successful) >= MIN_NEAR_BATCH_TRIALS else ():
            best = study.ranked()[0]
            higher, larger = (as_number(best.params.get(n)) - as_number(successful[0].params.get(n)) for n in (rate, size))
            old = spec.parameters[rate]
            new = old if higher * larger < 0 else _extend_range_beyond(old, rate, size, successful, near)
            goal = goal_with_new_range(spec.goal, rate, old, new)
            if new.high != old.high or new.low != old.low:
                side = "higher" if new.high != old.high else "lower"
                goal = goal.replace(f"Narrow {clean(rate)}", f"Search {side} {clean(rate)}", 1)
            spec = spec.with_parameter(rate, new).model_copy(update={"goal": goal})
    return validate_spec(spec)


def _extend_range_beyond(old: Parameter, rate: str, size: str, successful: list[Trial], near: list[Trial]) -> Parameter:
    """Return the learning rate with its new range. successful: trials of `near` with a result, best first."""
    best, tried = as_number(successful[0].params.get(rate)), [as_number(t.params.get(rate)) for t in near]
    low, high, (least, most) = old.low, old.high, old.declared_limits
    assert low is not None
    assert high is not None
    sides = [side for side, end in (("low", min(tried)), ("high", max(tried))) if best == end]
    if "high" in sides:
        high = max(high, min(round_significant(best * HALF_DECADE, 2), most))
    if "low" in sides:
        low = min(low, max(round_significant(best / HALF_DECADE, 2), least))
    if (low, high) == (old.low, old.high) or len(sides) != 1:
        return old
    why = (
        f"the best of the {len(successful)} trials with a {clean(size)} near {setting(successful[0].params[size])} has their "
        f"{sides[0]}est rate, {plain_number(best)}, so a better rate may lie beyond"
    )
    why = f"{old.why.rstrip('.')}. {why[0].upper()}{why[1:]}" if old.why else why
    return old.model_copy(update={"low": low, "high": high, "why": why})


def wider_rate_range(study: Study, spec: StudySpec) -> SetRange | None:
    """If the best trials lie at an end of the learning-rate range, return the change that moves this end outwards, even if no
    rule is sure that results improve beyond it; None if `spec` already moved this end. The learning rate usually matters most,
    and a wider range for it costs few trials.

    Also return None in three cases: results get worse towards the end; trials failed at the end or lie beyond it; or the
    sampler prefers the neighbourhood of good trials. If the study searched only the learning rate, a single worse setting
    nearer to the end shows that results get worse. If all settings are equally good, an end is moved in at most 8 % of studies."""
    rates = [n for n, p in spec.searched.items() if is_learning_rate(n) and p.numeric and n in study.searched]
    for name in rates:
        side, now, start = (_best_trials_end(study, name), spec.parameters[name], extension.round_inferred_range(study, name))
        if side is None or getattr(now, side) != getattr(start, side):
            continue
        moved = extension.extend_range(study, name, side, 0.0)
        if moved is None or now.low is None or now.high is None:
            continue
        # Move the end by the minimum factor for learning rates, because no trial shows where the best value lies.
        low, high = now.low, now.high
        if side == "low":
            low = max(moved[0][0], round_significant(low / extension.MIN_EXTENSION_FACTOR, 2)) if low > 0 else moved[0][0]
        else:
            high = min(moved[0][1], round_significant(high * extension.MIN_EXTENSION_FACTOR, 2))
        why = (
            f"At least {MIN_BEST_SETTINGS_AT_END} of the best {BEST_SETTINGS} settings lie in the {side}est third of the range "
            f"of {name}, including the best one, so a better value may lie beyond this end of the range"
        )
        return SetRange(parameter=name, low=low, high=high, scale=now.scale, why=why)
    return None


def _best_trials_end(study: Study, name: str) -> RangeSide | None:
    """Return the end of the range at which the best trials lie; None if they lie at neither end or this end cannot be moved."""
    ranked = repeats.first_trial_per_setting(study.ranked())
    if len(ranked) < 2 * BEST_SETTINGS or sampler.did_sampler_use_results(study):
        return None
    ended = [t for t in study.trials if study.ended[t.index]]
    tried, failed = study.positions(name, ended), failures.failure_masks(study).any[[t.index for t in ended]]
    best = study.positions(name, ranked[:BEST_SETTINGS])
    sides: tuple[RangeSide, ...] = get_args(RangeSide)
    for side in sides:
        outwards, reach = (best, tried) if side == "high" else (1 - best, 1 - tried)
        at_end = outwards >= 1 - OUTER_RANGE_SHARE
        if not at_end[0] or at_end.sum() < MIN_BEST_SETTINGS_AT_END:
            continue
        outer = study.positions(name, ranked) if side == "high" else 1 - study.positions(name, ranked)
        further, outer = outer > outwards[0], outer[outer >= 1 - OUTER_RANGE_SHARE]
        alone = len(study.searched) == 1 and further.any()
        worse_outwards = bool(np.ptp(outer)) and float(spearmanr(outer, range(len(outer))).statistic) > 0
        turns = alone or worse_outwards or 2 * further[:BEST_SETTINGS].sum() < further.sum()
        if not turns and not np.any((reach > 1 + 1e-9) | (failed & (reach >= outwards[0]))):
            return side
    return None
