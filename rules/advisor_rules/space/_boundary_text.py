"""Writes sentences and evidence rows about the position of the best trials in a range."""

from __future__ import annotations

import numpy as np

from advisor.computed.space import settings
from advisor.model.message import Message, Name, Number, Objective, Setting, say
from advisor.model.space import FloatArray, IntArray, RangeSide, as_number
from advisor.model.study import Study
from advisor.stats import boundaries

OUTER_FIFTH = 0.8 - 1e-9
"""Minimum position of a trial in the outer fifth of a range."""
MIN_CLUSTERED_TRIALS = 3
"""Minimum number of best trials in a region that show that good trials cluster there; one or two trials may lie there by
chance."""


def good_end_message(study: Study, tried: settings.Settings, name: str, side: RangeSide, good: IntArray) -> Message:
    """Return a sentence that shows that the good settings lie at the given end of the range."""
    domain, outer = study.spec.parameters[name], mirror_positions(tried.numeric[name], side)
    fine = np.isfinite(tried.costs) & np.isfinite(outer)
    turns = boundaries.outermost_is_worse(outer[fine], tried.costs[fine], "high")
    crowd, of, single = int((outer >= OUTER_FIFTH)[good].sum()), len(good), len(study.searched) == 1
    end = Setting(domain.high if side == "high" else domain.low)
    if of >= MIN_CLUSTERED_TRIALS and 2 * crowd > of and not (turns and single):
        trials = f"The {of} best trials are all" if crowd == of else f"{crowd} of the {of} best trials are"
        towards = "up" if side == "high" else "down"
        return say(f"{trials} in the {side}est fifth of {{name}}, {towards} to {{end}}.", name=Name(name), end=end)
    if turns and single:
        text = (
            "Fitted results are best at {end}, the {side} end of {name}, but the outermost trial is worse than others near it."
        )
        return say(text, end=end, side=side, name=Name(name))
    if turns:
        text = "With the other hyperparameters accounted for, results improve towards {end}, the {side} end of {name}."
        return say(text, end=end, side=side, name=Name(name))
    best = int(np.nanargmin(tried.costs))
    if outer[best] == outer[fine].max():
        return _outermost_value_message(study, tried, name, side, best)
    order = np.argsort(tried.costs[fine], kind="stable")
    halves = np.array_split(tried.numeric[name][fine][order], 2)
    better, worse = (Number(as_number(domain.value_at_position(float(np.median(h)))), 2) for h in halves)
    text = f"Better trials have {side}er values of {{name}}: the median is {{better}} in the better half of the trials, and "
    return say(f"{text}{{worse}} in the other half.", name=Name(name), better=better, worse=worse)


def mirror_positions(positions: FloatArray, side: RangeSide) -> FloatArray:
    """Return positions (n,) in a range, mirrored if necessary so that the end `side` has position 1."""
    return positions if side == "high" else 1 - positions


def _outermost_value_message(study: Study, tried: settings.Settings, name: str, side: RangeSide, best: int) -> Message:
    """Return a sentence that says that the best setting has the outermost value, and states the best result with other
    values."""
    end = Setting(tried.trials[best][0].params.get(name))
    others = tried.costs[np.isfinite(tried.costs) & (tried.numeric[name] != tried.numeric[name][best])]
    if not len(others):
        return say(f"Only the {side}est {{name}}, {{end}}, leads to a result.", name=Name(name), end=end)
    reached = np.nanmax(mirror_positions(study.positions(name, study.trials), side))
    furthest = mirror_positions(tried.numeric[name], side)[best] >= reached - 1e-9
    of, bound = "that was tried" if furthest else "of the comparable trials", "least" if study.minimize else "most"
    value, rest = (Objective(study.objective_value(float(c))) for c in (tried.costs[best], others.min()))
    text = f"The best trial has the {side}est {{name}} {of}, {{end}}: {{metric}} is {{value}}, and at "
    text += f"{'lower' if side == 'high' else 'higher'} values at {bound} {{rest}}."
    return say(text, name=Name(name), end=end, metric=Name(study.spec.objective.metric), value=value, rest=rest)
