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
"""Maximum ratio between the batch sizes of a trial and of the next study for the trial to count as near. Our choice."""
MIN_NEAR_BATCH_TRIALS = 3
"""Minimum number of trials with a result near the next study's batch size. With fewer trials, the best trial would too often
have the lowest or highest learning rate by chance. Our choice."""
N_BEST_SETTINGS = 5
"""Number of best settings that show whether an end is moved. The study needs at least twice as many."""
MIN_BEST_SETTINGS_AT_END = 4
"""Minimum number of the `N_BEST_SETTINGS` best settings, with the best one, in the outer part of the range. Our choice."""
OUTER_RANGE_SHARE = 1 / 3
"""Share of a learning-rate range, on its scale, that counts as the outer part at each end. Our choice."""


def with_narrower_ranges(study: Study, spec: StudySpec, keep: Collection[SpecPart]) -> StudySpec:
    """Return the next study with narrower ranges. They omit values that the trials of `study` show to be worse.

    The ranges come from a model of all trials (`advisor.computed.space.promising`), even if no rule found the current ranges
    too wide. Probes, studies with listed settings and studies after an adaptive search keep all ranges. A learning-rate range
    also stays unchanged if the next study is the first to vary momentum, because good learning rates depend on momentum. keep:
    parts of the study file that findings set, such as the end of a range. If findings narrowed one end of a range, trials may
    still narrow the range further. If a finding moved an end beyond the tried range, all ranges stay unchanged."""
    if spec.probe is not None or spec.settings or study.spec.sampler.kind == "adaptive":
        return spec
    new_names = spec.searched.keys() & (study.spec.parameters.keys() - study.searched.keys())
    varies_momentum = any("momentum" in words_of_name(n) for n in new_names)
    possible = promising.narrower_ranges(study, spec)
    possible = {n: ends for n, ends in possible.items() if not (varies_momentum and is_learning_rate(n))}
    by_findings = {name for name, _ in keep}
    if any(_exceeds_tried_range(study, spec, name) for name in by_findings & spec.searched.keys() & study.searched.keys()):
        return spec
    limited = {name: _limit_ends_to_findings(study, spec, name, ends, keep) for name, ends in possible.items()}
    ranges = {n: ends for n, ends in limited.items() if ends != (spec.parameters[n].low, spec.parameters[n].high)}
    spec_before = spec
    fit = promising.fit_response_model(study) if ranges else None
    reason = "" if fit is None else f"{promising.PROMISING_RANGE_REASON} of {fit.fitted_trial_count} settings"
    if promising.trains_differently(study, spec):
        reason += ", widened somewhat, because the next study has other changes, too"
    for name, (low, high) in ranges.items():
        old = spec.parameters[name]
        why = f"{old.why.rstrip('.')}. {capitalise(reason)}" if name in by_findings and old.why else reason
        new = old.model_copy(update={"low": low, "high": high, "why": why})
        goal = goal_with_new_range(spec.goal, name, old, new) if name in by_findings else spec.goal
        spec = spec.with_parameter(name, new).model_copy(update={"goal": goal})
    if ranges and spec.trials and spec.goal == explore.more_trials_goal(spec_before):
        spec = spec.model_copy(update={"goal": explore.more_trials_goal(spec, ranges)})
    return validate_spec(spec)


def _exceeds_tried_range(study: Study, spec: StudySpec, name: str) -> bool:
    """Return whether the range of the next study extends beyond the range that `study` searched."""
    now, tried = spec.parameters[name], round_inferred_range(study, name)
    return now.numeric and tried.numeric and not all(map(tried.contains, now.ends))


def _limit_ends_to_findings(
    study: Study, spec: StudySpec, name: str, ends: tuple[float, float], keep: Collection[SpecPart]
) -> tuple[float, float]:
    """Return the ends of the narrower range. If findings only narrowed one end, limit this end to the finding's value. If
    findings changed the range in another way, return the range that they set."""
    now = spec.parameters[name]
    changed_parts = {part for subject, part in keep if subject == name}
    if not changed_parts:
        return ends
    assert now.low is not None
    assert now.high is not None
    low, high = (max(now.low, ends[0]), ends[1]) if changed_parts == {"low"} else (ends[0], min(now.high, ends[1]))
    # The next study rounds ends of inferred ranges outwards, which is not a finding's change.
    old = round_inferred_range(study, name) if name in study.searched else now
    only_cut = old.numeric and old.contains(now.low) and old.contains(now.high)
    return (low, high) if only_cut and changed_parts in ({"low"}, {"high"}) and low < high else (now.low, now.high)


def with_range_for_batch_size(study: Study, spec: StudySpec) -> StudySpec:
    """Return `spec`. If it fixes a batch size that `study` searched, and trials near this size suggest learning rates outside
    the ranges, widen the learning-rate ranges.

    The best learning rate grows with the batch size. A learning-rate range based on trials of all batch sizes can therefore be
    too low for a large batch size, or too high for a small one. If, among the trials near the new batch size, the best trial
    has the lowest or highest learning rate, the range is extended to half a decade beyond the best trial's rate. The range
    stays if the study's best trial has a lower learning rate at a larger batch size, or a higher one at a smaller batch size.
    """
    fixed_batch_sizes = [n for n in study.searched if parameter_kinds.is_batch_size(n) and n in spec.fixed_values]
    rates = [n for n, p in spec.searched.items() if is_learning_rate(n) and p.scale == "log" and n in study.searched]
    for size in fixed_batch_sizes[:1] if spec.probe is None and not spec.settings else ():
        batch_size = as_number(spec.parameters[size].value)
        min_size, max_size = batch_size / MAX_NEAR_BATCH_RATIO, batch_size * MAX_NEAR_BATCH_RATIO
        nearby = [t for t in study.trials if study.ended[t.index] and min_size <= as_number(t.params.get(size)) <= max_size]
        successes = [t for t in study.ranked() if t in nearby]
        for rate in rates if len(successes) >= MIN_NEAR_BATCH_TRIALS else ():
            best_trial = study.ranked()[0]
            higher, larger = (as_number(best_trial.params.get(n)) - as_number(successes[0].params.get(n)) for n in (rate, size))
            old = spec.parameters[rate]
            new = old if higher * larger < 0 else _extend_range_beyond(old, rate, size, successes, nearby)
            goal = goal_with_new_range(spec.goal, rate, old, new)
            if new.high != old.high or new.low != old.low:
                side = "higher" if new.high != old.high else "lower"
                goal = goal.replace(f"Narrow {clean(rate)}", f"Search {side} {clean(rate)}", 1)
            spec = spec.with_parameter(rate, new).model_copy(update={"goal": goal})
    return validate_spec(spec)


def _extend_range_beyond(old: Parameter, rate: str, size: str, successes: list[Trial], nearby: list[Trial]) -> Parameter:
    """Return the learning rate with its new range. successes: trials of `nearby` with a result, best first."""
    best_rate, tried_rates = (as_number(successes[0].params.get(rate)), [as_number(t.params.get(rate)) for t in nearby])
    low, high, (min_rate, max_rate) = old.low, old.high, old.declared_limits
    assert low is not None
    assert high is not None
    sides = [side for side, end in (("low", min(tried_rates)), ("high", max(tried_rates))) if best_rate == end]
    if "high" in sides:
        high = max(high, min(round_significant(best_rate * HALF_DECADE, 2), max_rate))
    if "low" in sides:
        low = min(low, max(round_significant(best_rate / HALF_DECADE, 2), min_rate))
    if (low, high) == (old.low, old.high) or len(sides) != 1:
        return old
    why = (
        f"the best of the {len(successes)} trials with a {clean(size)} near {setting(successes[0].params[size])} has their "
        f"{sides[0]}est rate, {plain_number(best_rate)}, so a better rate may lie beyond"
    )
    why = f"{old.why.rstrip('.')}. {why[0].upper()}{why[1:]}" if old.why else why
    return old.model_copy(update={"low": low, "high": high, "why": why})


def wider_rate_range(study: Study, spec: StudySpec) -> SetRange | None:
    """If the best trials lie at an end of the learning-rate range, return the change that moves this end outwards, or None if
    `spec` already moved the end. No rule needs to be sure that results improve beyond the end: the learning rate usually
    matters most, and a wider range for it costs few trials.

    Also return None in three cases: results get worse towards the end; trials failed at the end or lie beyond it; or the
    sampler prefers the neighbourhood of good trials. If all settings are equally good, an end is moved in at most 8 % of
    studies."""
    rates = [n for n, p in spec.searched.items() if is_learning_rate(n) and p.numeric and n in study.searched]
    for name in rates:
        side, now = _range_end_of_best_trials(study, name), spec.parameters[name]
        start = round_inferred_range(study, name)
        if side is None or getattr(now, side) != getattr(start, side):
            continue
        extended = extension.extend_range(study, name, side, 0.0)
        if extended is None:
            continue
        # Move the end only by the minimum factor, because no trial shows how far beyond it the best value lies.
        (lowest, highest), (low, high) = extended[0], now.ends
        if side == "low":
            low = max(lowest, round_significant(low / extension.MIN_EXTENSION_FACTOR, 2)) if low > 0 else lowest
        else:
            high = min(highest, round_significant(high * extension.MIN_EXTENSION_FACTOR, 2))
        why = (
            f"At least {MIN_BEST_SETTINGS_AT_END} of the best {N_BEST_SETTINGS} settings lie in the {side}est third of the range "
            f"of {name}, including the best one, so a better value may lie beyond this end of the range"
        )
        return SetRange(parameter=name, low=low, high=high, scale=now.scale, why=why)
    return None


def _range_end_of_best_trials(study: Study, name: str) -> RangeSide | None:
    """Return the end of the range at which the best trials lie, or None if they lie at neither end, results get worse towards
    the end, or trials at or beyond the end were already run or failed."""
    ranked_trials = repeats.first_trial_per_setting(study.ranked())
    if len(ranked_trials) < 2 * N_BEST_SETTINGS or sampler.did_sampler_use_results(study):
        return None
    ended_trials = [t for t in study.trials if study.ended[t.index]]
    tried = study.positions(name, ended_trials)
    failed = failures.failure_masks(study).has_failed[[t.index for t in ended_trials]]
    best_positions = study.positions(name, ranked_trials[:N_BEST_SETTINGS])
    sides: tuple[RangeSide, ...] = get_args(RangeSide)
    for side in sides:
        near, reach = (best_positions, tried) if side == "high" else (1 - best_positions, 1 - tried)
        is_outer = near >= 1 - OUTER_RANGE_SHARE
        if not is_outer[0] or is_outer.sum() < MIN_BEST_SETTINGS_AT_END:
            continue
        outer = study.positions(name, ranked_trials) if side == "high" else 1 - study.positions(name, ranked_trials)
        further, outer = (outer > near[0], outer[outer >= 1 - OUTER_RANGE_SHARE])
        is_single_worse = len(study.searched) == 1 and further.any()
        gets_worse = bool(np.ptp(outer)) and float(spearmanr(outer, range(len(outer))).statistic) > 0
        response_turns = is_single_worse or gets_worse or 2 * further[:N_BEST_SETTINGS].sum() < further.sum()
        if not response_turns and not np.any((reach > 1 + 1e-9) | (failed & (reach >= near[0]))):
            return side
    return None
