"""Finds regions of the search space where trials fail, and the changes that exclude these regions."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from advisor.computed.space import extension, settings
from advisor.model.change import Advise, Change, FixParameter, Forbid, Reparametrise, SetRange
from advisor.model.evidence import AxisEvidence, axis_plot
from advisor.model.learning_rate import searched_learning_rates
from advisor.model.message import Message, MessagePart, Name, Number, Setting, lower_bound, say, upper_bound
from advisor.model.space import FloatArray, IntArray, RangeSide, as_number, is_learning_rate, words_of_name
from advisor.model.spec import Bounds, Region
from advisor.model.study import Study
from advisor.model.words import capitalise
from advisor.stats import outliers, widening
from advisor_rules.space import _corners, _good_region, _rows

HIGH_RATE_ALPHA_SHARE = 0.4
"""Share of the significance level for the hypothesis that a too high learning rate causes the failures."""
JOINT_TEST_ALPHA_SHARE = 0.15
"""Share of the significance level for each of two tests: of corners, and of lr / (1 - momentum). Tests of single thresholds get
the remaining share of the significance level."""
BOTH_ENDS_ALPHA_SHARE = 0.05
"""Share of the significance level for the test of failures at both ends of one range."""
MIN_CORNER_FAILURE_SHARE = 0.8
"""Minimum share of failed trials in a corner of the space at which the next study excludes the corner; below this share, the
rule only gives advice. Our choice."""
MIN_BEST_SETTINGS = 5
"""Number of best settings that a region of failures must not contain; in a large study, 2 % of all settings are protected
instead. Our choice."""
MIN_BEST_SETTINGS_SHARE = 0.02
MAX_BEST_SETTINGS_SHARE = 0.25
"""Maximum number of best settings that a region of failures must not contain, as a share of the successful settings. In a small
study, not all of the best five settings are good."""

HIGHER_RATE_EXTENSION = 0.5
"""Distance, in widths of the range, by which a learning-rate range is extended beyond the best trial if lower rates learned
nothing. Our choice."""

GOOD_SETTINGS_SHARE, MISSED_GOOD_PROBABILITY = 0.1, 0.2
"""Share of the settings that count as good, and probability that further good settings lie below the new range; `space-shrink`
uses the same values."""


@dataclass(frozen=True)
class FailureCut:
    """A region where trials fail, and the changes that exclude it from the next study."""

    subject: str
    failed_settings_phrase: Message
    """The failed trials in the region, as a phrase: "8 of the 9 settings with lr of 0.1 or more"."""
    action: Message
    changes: tuple[Change, ...]
    p_value: float
    """Probability that some region separates randomly failed trials at least as clearly."""
    side: RangeSide | None = None
    evidence: tuple[AxisEvidence, ...] = ()


def find_failure_cut(study: Study, false_alarms: float) -> FailureCut | None:
    """Return the region of failures, and the changes that exclude it, that best separates failed from other trials; None if
    chance can explain every region of failures.

    A region in two hyperparameters must explain more failures than the best single threshold. No returned region contains one
    of the best settings.
    """
    tried = settings.settings_of_all_lengths(study)
    if tried.failed.all():
        return None
    level = tried.corrected_level(false_alarms)
    single = _find_significant_regions(tried, level)
    one = _cut_at_threshold(study, tried, single) if single else _keep_around_successes(study, tried)
    inside = [region.contains(tried.numeric[name]) for name, region in single]
    alone = max((_corners.log_likelihood_ratio(mask, tried.failed) for mask in inside), default=0.0)
    joint = _find_joint_failure_region(study, tried, alone, level)
    if one is None and joint is None:
        return _cut_both_ends(study, tried, level)
    return one if joint is None else replace(joint, evidence=one.evidence if one is not None else ())


def search_lower_rates(study: Study, unstable: bool) -> SetRange | None:
    """Return the change to search the two decades below all tried learning rates, if every trial failed by instability."""
    rates = searched_learning_rates(study)
    if rates is None or not unstable or not np.isfinite(rates[1]).any():
        return None
    lowest = float(np.nanmin(rates[1]))
    why = f"Every trial failed; {Number(lowest)} is the lowest {Name(rates[0])} that was tried"
    return SetRange(parameter=rates[0], low=lowest / 100, high=lowest, scale="log", why=why)


def search_higher_rates(study: Study, level: float) -> SetRange | None:
    """Return the change to search higher learning rates than all that were tried, if a rate separates the settings that failed
    from those that did not, beyond chance, and the best trial has the highest rate. The caller has checked how they failed."""
    rates, tried = searched_learning_rates(study), settings.settings_of_all_lengths(study)
    if rates is None or rates[0] not in tried.numeric or not (best := study.ranked()[:1]):
        return None
    name, positions = rates[0], tried.numeric[rates[0]]
    bad, fine = positions[tried.failed], positions[~tried.failed]
    is_separated = bool(len(bad) and len(fine)) and bad.max() < fine.min() and rates[1][best[0].index] == np.nanmax(rates[1])
    extended = extension.extend_range(study, name, "high", HIGHER_RATE_EXTENSION)
    if not is_separated or math.comb(len(positions), len(bad)) < 1 / level or extended is None:
        return None
    domain = study.spec.parameters[name]
    low = widening.round_range_end(as_number(domain.value_at_position(float(bad.max()))), domain)
    why = f"All settings with {Name(name)} of {Number(low)} or less learned nothing, and the best trial has the highest value"
    return SetRange(parameter=name, low=low, high=extended[0][1], scale=domain.scale, why=why)


def _failing_trials_text(failed: int, total: int, place: MessagePart) -> Message:
    if failed < total:
        return say("{failed} of the {total} settings with {place}", failed=failed, total=total, place=place)
    settings_there = "the only setting" if total == 1 else say("all {total} settings", total=total)
    return say("{settings} with {place}", settings=settings_there, place=place)


def _best_settings(tried: settings.Settings) -> IntArray:
    number = max(MIN_BEST_SETTINGS, math.ceil(MIN_BEST_SETTINGS_SHARE * len(tried)))
    number = min(number, int(MAX_BEST_SETTINGS_SHARE * tried.result_count))
    return np.argsort(tried.costs, kind="stable")[: max(number, 1)]


def _beyond_threshold_text(name: str, edge: float, side: RangeSide) -> Message:
    bound = lower_bound(edge) if side == "high" else upper_bound(edge)
    return say(f"{{name}} of {{edge}} or {'more' if side == 'high' else 'less'}", name=Name(name), edge=bound)


def _find_significant_regions(tried: settings.Settings, false_alarms: float) -> list[tuple[str, outliers.FailureRegion]]:
    if not tried.numeric:
        return []
    names, best = list(tried.numeric), _best_settings(tried)
    level = false_alarms * (1 - BOTH_ENDS_ALPHA_SHARE - (2 * JOINT_TEST_ALPHA_SHARE if len(names) > 1 else 0))
    positions = np.stack(list(tried.numeric.values()), axis=1)
    regions = outliers.find_failure_regions(positions, tried.failed)
    rates = [i for i, name in enumerate(names) if is_learning_rate(name)][:1]
    if len(names) > 1 and rates:
        # High learning rates are the usual reason for failures, so a share of the significance level is reserved for them.
        high = outliers.find_failure_regions(positions[:, rates], tried.failed, sides=(("high",),))
        first = [replace(r, axis=rates[0], p_value=min(r.p_value / HIGH_RATE_ALPHA_SHARE, 1.0)) for r in high]
        regions = [*first, *(replace(r, p_value=min(r.p_value / (1 - HIGH_RATE_ALPHA_SHARE), 1.0)) for r in regions)]
        regions.sort(key=lambda r: r.p_value)
    clearest: dict[str, outliers.FailureRegion] = {}
    for region in regions:
        if _is_clear(region, level) and not region.contains(positions[best, region.axis]).any():
            clearest.setdefault(names[region.axis], region)
    return list(clearest.items())


def _is_clear(region: outliers.FailureRegion, level: float) -> bool:
    mostly_failed = 2 * region.failed_count >= region.trial_count
    return region.p_value <= level and mostly_failed and math.isfinite(region.nearest_outside_position)


def _keep_around_successes(study: Study, tried: settings.Settings) -> FailureCut | None:
    """Return the range around the successful settings as a change, if only one numeric hyperparameter is searched and most
    settings failed, some below and some above the successful settings."""
    if len(study.searched) != 1 or len(tried.numeric) != 1 or 2 * tried.failed.sum() < len(tried):
        return None
    ((name, at),) = tried.numeric.items()
    fine, bad = at[~tried.failed], at[tried.failed]
    below, above = bad[bad < fine.min()], bad[bad > fine.max()]
    count, number = len(below) + len(above), len(fine)
    if not (len(below) and len(above)) or count < len(bad):
        return None
    domain = study.spec.parameters[name]
    low, high = (widening.round_range_end(as_number(domain.value_at_position(x)), domain) for x in (below.max(), above.min()))
    place = say("{name} of {low} or less, or {high} or more", name=Name(name), low=low, high=high)
    which = _failing_trials_text(count, count, place)
    change = SetRange(parameter=name, low=low, high=high, scale=domain.scale, why=capitalise(f"{which} failed"))
    caption = say("The following trials failed: {which}.", which=which)
    shown = axis_plot(name, caption, span=(low, high))
    action = _rows.range_advice("Narrow the range of {name}", name, low, high)
    p = math.exp(math.log(len(tried) - number + 1) - math.log(math.comb(len(tried), number)))
    return FailureCut(name, which, action, (change,), min(p, 1.0), None, (shown,))


def _cut_both_ends(study: Study, tried: settings.Settings, level: float) -> FailureCut | None:
    """Return the change that cuts both ends of a range, if trials fail at both: of the learning rate, at which training learns
    nothing or diverges, or else of the clearest hyperparameter. Failures at one end hide a threshold at the other end."""
    rates = [name for name in tried.numeric if is_learning_rate(name)][:1]
    names, best = rates or list(tried.numeric), _best_settings(tried)
    found = []
    for name in names:
        both = outliers.find_failures_at_both_ends(tried.numeric[name], tried.failed)
        if both is None or any(r.contains(tried.numeric[name][best]).any() for r in both):
            continue
        regions = [replace(r, p_value=min(r.p_value * len(names), 1.0)) for r in both]
        if all(_is_clear(r, BOTH_ENDS_ALPHA_SHARE * level) for r in regions):
            found.append((regions[0].p_value, name, regions))
    if not found:
        return None
    p, name, regions = min(found, key=lambda f: f[:2])
    domain = study.spec.parameters[name]
    ends, edges, places = [], [], []
    for region in regions:
        middle = (region.edge_position + region.nearest_outside_position) / 2
        inner = region.nearest_outside_position if domain.type == "int" else middle
        ends.append(widening.round_range_end(as_number(domain.value_at_position(inner)), domain))
        edges.append(as_number(domain.value_at_position(region.edge_position)))
        place = _beyond_threshold_text(name, edges[-1], region.side)
        places.append(_failing_trials_text(region.failed_count, region.trial_count, place))
    (low, high), which = ends, say("{low}, and {high}", low=places[0], high=places[1])
    if not low < high:
        return None
    change = SetRange(parameter=name, low=low, high=high, scale=domain.scale, why=capitalise(f"{which} failed"))
    caption = say("The following trials failed: {which}.", which=which)
    lines = {"trials fail below this line": edges[0], "trials fail above this line": edges[1]}
    shown = axis_plot(name, caption, lines=lines, span=(low, high))
    action = _rows.range_advice("Narrow the range of {name}", name, low, high)
    return FailureCut(name, which, action, (change,), p, None, (shown,))


def _cut_at_threshold(study: Study, tried: settings.Settings, found: list[tuple[str, outliers.FailureRegion]]) -> FailureCut:
    (name, region), high_side = found[0], found[0][1].side == "high"
    domain = study.spec.parameters[name]
    inner = domain.value_at_position(region.nearest_outside_position)
    edge = as_number(domain.value_at_position(region.edge_position))
    middle = domain.value_at_position((region.edge_position + region.nearest_outside_position) / 2)
    bound = as_number(inner) if domain.type == "int" else widening.round_range_end(as_number(middle), domain)
    low, high = (as_number(domain.low), bound) if high_side else (bound, as_number(domain.high))
    which = _failing_trials_text(region.failed_count, region.trial_count, _beyond_threshold_text(name, edge, region.side))
    why = capitalise(f"{which} failed")
    failed = tried.failed & region.contains(tried.numeric[name])
    lacking = high_side and failed.any() and bool(settings.out_of_memory_settings(study, tried)[failed].all())
    if low < high:
        change: Change = SetRange(parameter=name, low=low, high=high, scale=domain.scale, why=why, limited=lacking)
        action = _rows.range_advice("Narrow the range of {name}", name, low, high)
    else:
        change = FixParameter(parameter=name, value=inner, why=why)
        action = say("Fix {name} at {value}.", name=Name(name), value=Setting(inner))
    if lacking:
        text = "Keep {name} at {value} or less; larger values do not fit in memory."
        action = say(text, name=Name(name), value=Setting(high))
    lines, span = {"trials fail beyond this line": edge}, (low, high) if low < high else (None, None)
    shown = axis_plot(name, say("The following trials failed: {which}.", which=which), lines=lines, span=span)
    text = "Consider searching a combination of {} and {} instead of one, because failures depend on both."
    more = [Advise(text=text.format(Name(name), Name(other))) for other, _ in found[1:2]]
    return FailureCut(name, which, action, (change, *more), region.p_value, region.side, (shown,))


def _find_joint_failure_region(study: Study, tried: settings.Settings, alone: float, level: float) -> FailureCut | None:
    """Return the region in two hyperparameters that separates failed trials better than the best single threshold, whose score
    is `alone`. A threshold of lr / (1 - momentum) need only be as good, because training diverges if steps are too long.

    The logarithm of the number of trials is subtracted from the score for each fitted threshold. level: maximum p-value.
    """
    if len(tried.numeric) < 2 or not tried.failed.any():
        return None
    found = [_find_high_effective_rate(tried, level), _find_clearest_corner(study, tried, level)]
    least = alone - math.log(len(tried))
    better = [f for f in found if f is not None and f[0] >= least]
    if not better:
        return None
    score, joint = max(better, key=lambda f: f[0])
    # If the learning rate alone separates failures equally well, the finding names only the learning rate, and step lengths
    # only determine the next range.
    rate = next((c.parameter for c in joint.changes if isinstance(c, Reparametrise)), None)
    return joint if rate is None or score > least else replace(joint, subject=rate, side="high")


def _find_high_effective_rate(tried: settings.Settings, level: float) -> tuple[float, FailureCut] | None:
    """Return (score, cut) for a high effective learning rate, lr / (1 - momentum): the step length at full momentum."""
    rate = next((n for n in tried.numeric if is_learning_rate(n)), None)
    momentum = next((n for n in tried.numeric if "momentum" in words_of_name(n)), None)
    if rate is None or momentum is None:
        return None
    first = [group[0].params for group in tried.trials]
    steps = np.array([as_number(p.get(rate)) / (1 - as_number(p.get(momentum))) for p in first])
    if not (np.isfinite(steps).all() and (steps > 0).all()):
        return None
    logs = np.log(steps)
    regions = outliers.find_failure_regions(logs[:, None], tried.failed, sides=(("high",),))
    region = next((r for r in regions if _is_clear(r, JOINT_TEST_ALPHA_SHARE * level)), None)
    if region is None or region.contains(logs[_best_settings(tried)]).any():
        return None
    fine = logs[~tried.failed]
    lowest = _lowest_good_position(fine, tried.costs[~tried.failed], level)
    middle = (region.edge_position + region.nearest_outside_position) / 2
    low, high = (float(f"{math.exp(x):.3g}") for x in (lowest, middle))
    if low >= high:
        return None
    score = _corners.log_likelihood_ratio(region.contains(logs), tried.failed) - math.log(len(tried))
    over, name = f"{_name_in_formula(rate)} / (1 - {_name_in_formula(momentum)})", f"effective_{rate}"
    beyond = _beyond_threshold_text(over, math.exp(region.edge_position), "high")
    which = _failing_trials_text(region.failed_count, region.trial_count, beyond)
    why = f"{capitalise(str(which))} failed, so we search {over} instead of {rate}, up to {Setting(high)}"
    if lowest > fine.min():
        why += f"; below {Setting(low)}, results are worse"
    formula = f"{_name_in_formula(name)} * (1 - {_name_in_formula(momentum)})"
    change = Reparametrise(parameter=rate, by=name, formula=formula, equals=over, low=low, high=high, scale="log", why=why)
    action = say("Search {over} instead of {rate}, up to {high}.", over=Name(over), rate=Name(rate), high=Setting(high))
    return score, FailureCut(f"{rate} × {momentum}", which, action, (change,), region.p_value)


def _lowest_good_position(positions: FloatArray, costs: FloatArray, level: float) -> float:
    """Return the low end of the range of good settings minus a margin; the lowest position if results hardly vary. positions,
    costs: (n,), of the successful settings."""
    lowest = float(positions.min())
    if len(positions) < _good_region.MIN_POINTS or _good_region.p_of_unrelated_costs(positions, costs, level) > level:
        return lowest
    is_good = _good_region.mask_good_points(costs, GOOD_SETTINGS_SHARE, 0.0)
    part = _good_region.find_good_region(positions, costs, is_good, MISSED_GOOD_PROBABILITY)
    return lowest if part is None else max(part.low - part.margin, lowest)


def _name_in_formula(name: str) -> str:
    return name if name.isidentifier() else f"{{{name}}}"


def _find_clearest_corner(study: Study, tried: settings.Settings, level: float) -> tuple[float, FailureCut] | None:
    names = list(tried.numeric)
    found = _corners.find_failure_corner(np.stack(list(tried.numeric.values()), axis=1), tried.failed, _best_settings(tried))
    if found is None or found.p > JOINT_TEST_ALPHA_SHARE * level:
        return None
    where, places = {}, []
    for axis, side, position in zip(found.axes, found.sides, found.edge_positions, strict=True):
        domain = study.spec.parameters[names[axis]]
        edge = widening.round_range_end(as_number(domain.value_at_position(position)), domain)
        where[names[axis]] = Bounds(low=edge) if side == "high" else Bounds(high=edge)
        places.append(_beyond_threshold_text(names[axis], edge, side))
    place = say("{first} and {second}", first=places[0], second=places[1])
    failed, total = int((found.inside & tried.failed).sum()), int(found.inside.sum())
    which = _failing_trials_text(failed, total, place)
    change: Change
    if failed >= MIN_CORNER_FAILURE_SHARE * total:
        change = Forbid(region=Region(where=where, why=capitalise(f"{which} failed")))
        action = say("Draw no trials with {place}.", place=place)
    else:
        action = say("Draw fewer trials with {place}: most trials fail there, but not all.", place=place)
        change = Advise(text=str(action))
    if failed < total:
        which = say("{which} (the other {rest} ended with a result)", which=which, rest=total - failed)
    return found.corner_score - 2 * math.log(len(tried)), FailureCut(" × ".join(where), which, action, (change,), found.p)
