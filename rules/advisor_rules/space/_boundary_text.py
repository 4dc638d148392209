"""Writes sentences and evidence rows about the position of the best trials in a range."""

from __future__ import annotations

import numpy as np

from advisor.computed.space import settings
from advisor.model.message import Message, Name, Number, Objective, Percent, Setting, say
from advisor.model.space import BoolArray, FloatArray, IntArray, RangeSide, as_number
from advisor.model.study import Study
from advisor.stats import boundaries

MIN_CLUSTERED_TRIALS = 3
"""Minimum number of best trials in a region that show that good trials cluster there; one or two trials may lie there by
chance."""


def good_end_message(study: Study, tried: settings.Settings, name: str, side: RangeSide, good: IntArray) -> Message:
    """Return a sentence that shows that the good settings lie at the given end of the range."""
    outer = _mirror_positions(tried.numeric[name], side)
    fine = np.isfinite(tried.costs) & np.isfinite(outer)
    turns = boundaries.outermost_is_worse(outer[fine], tried.costs[fine], "high")
    crowd = int(_in_outer_fifth(tried, name, side)[good].sum())
    if len(good) >= MIN_CLUSTERED_TRIALS and 2 * crowd > len(good) and not (turns and len(study.searched) == 1):
        return _clustered_trials_text(study, name, side, crowd, len(good))
    if turns:
        return _fitted_improvement_text(study, name, side)
    best = int(np.nanargmin(tried.costs))
    if outer[best] == outer[fine].max():
        return _outermost_value_message(study, tried, name, side, best)
    return _better_half_text(study, tried, name, side, fine)


def _mirror_positions(positions: FloatArray, side: RangeSide) -> FloatArray:
    """Return positions (n,) in a range, mirrored if necessary so that the end `side` has position 1."""
    return positions if side == "high" else 1 - positions


def outer_fifth_row(tried: settings.Settings, name: str, side: RangeSide, good: IntArray) -> tuple[str, Message]:
    """Return the evidence row with the numbers of trials in the outer fifth of the range."""
    zone = _in_outer_fifth(tried, name, side)
    share, count = Percent(float(zone.mean())), int(zone[good].sum())
    text = "{count} of the {of} best, {share} of all"
    return f"trials in the {side}est fifth", say(text, count=count, of=len(good), share=share)


def _in_outer_fifth(tried: settings.Settings, name: str, side: RangeSide) -> BoolArray:
    outer = _mirror_positions(tried.numeric[name], side)
    return np.asarray(outer >= 0.8 - 1e-9)


def _clustered_trials_text(study: Study, name: str, side: RangeSide, crowd: int, of: int) -> Message:
    domain = study.spec.parameters[name]
    return say(
        f"{{which}} in the {side}est fifth of {{name}}, {'up' if side == 'high' else 'down'} to {{end}}.",
        which=say("The {of} best trials are all", of=of)
        if crowd == of
        else say("{crowd} of the {of} best trials are", crowd=crowd, of=of),
        name=Name(name),
        end=Setting(domain.high if side == "high" else domain.low),
    )


def _outermost_value_message(study: Study, tried: settings.Settings, name: str, side: RangeSide, best: int) -> Message:
    """Return a sentence that says that the best setting has the outermost value, and states the best result with other
    values."""
    others = tried.costs[np.isfinite(tried.costs) & (tried.numeric[name] != tried.numeric[name][best])]
    if not len(others):
        return say(
            f"Only the {side}est {{name}}, {{end}}, leads to a result.",
            name=Name(name),
            end=Setting(tried.trials[best][0].params.get(name)),
        )
    reached = _mirror_positions(study.positions(name, study.trials), side)
    furthest = _mirror_positions(tried.numeric[name], side)[best] >= np.nanmax(reached) - 1e-9
    value, rest = (Objective(study.objective_value(float(c))) for c in (tried.costs[best], others.min()))
    return say(
        f"The best trial has the {side}est {{name}} {{of}}, {{end}}: {{metric}} is {{value}}, and at "
        f"{'lower' if side == 'high' else 'higher'} values at {'least' if study.minimize else 'most'} {{rest}}.",
        name=Name(name),
        of="that was tried" if furthest else "of the comparable trials",
        end=Setting(tried.trials[best][0].params.get(name)),
        metric=Name(study.spec.objective.metric),
        value=value,
        rest=rest,
    )


def _better_half_text(study: Study, tried: settings.Settings, name: str, side: RangeSide, fine: BoolArray) -> Message:
    domain, order = study.spec.parameters[name], np.argsort(tried.costs[fine], kind="stable")
    halves = np.array_split(tried.numeric[name][fine][order], 2)
    better, worse = (Number(as_number(domain.value_at_position(float(np.median(h)))), 2) for h in halves)
    return say(
        f"Better trials have {side}er values of {{name}}: the median is {{better}} in the better half of the trials, and {{worse}} "
        "in the other half.",
        name=Name(name),
        better=better,
        worse=worse,
    )


def _fitted_improvement_text(study: Study, name: str, side: RangeSide) -> Message:
    """Return a sentence that says that results improve towards the given end although the outermost trial is worse than its
    neighbours."""
    domain = study.spec.parameters[name]
    text = "With the other hyperparameters accounted for, results improve towards {end}, the {side} end of {name}."
    if len(study.searched) == 1:
        text = (
            "Fitted results are best at {end}, the {side} end of {name}, but the outermost trial is worse than others near it."
        )
    return say(text, end=Setting(domain.high if side == "high" else domain.low), side=side, name=Name(name))
