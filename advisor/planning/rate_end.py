"""Widens the learning-rate range if the best trials lie at one of its ends, even if no rule is sure that results improve beyond
this end.

The learning rate usually matters most, and a wider range for the learning rate costs few trials. The learning-rate range is
therefore widened before regularisers are compared, and together with other changes of the search space.
"""

from __future__ import annotations

from typing import get_args

import numpy as np
from scipy.stats import spearmanr

from advisor.computed.decision import repeats
from advisor.computed.space import extension, failures, sampler
from advisor.model.change import SetRange
from advisor.model.space import RangeSide, is_learning_rate, round_significant
from advisor.model.spec import StudySpec
from advisor.model.study import Study

BEST = 5
"""Number of best settings to examine; the study needs at least twice as many settings."""
MIN_BEST_SETTINGS_AT_END = 4
"""Minimum number of the `BEST` settings, including the best one, that must lie in the outer part of the range. Our choice."""
OUTER_RANGE_SHARE = 1 / 3
"""Share of a learning-rate range, on its scale, that counts as the outer part at each end. Our choice."""


def wider_rate_range(study: Study, spec: StudySpec) -> SetRange | None:
    """If the best trials lie at an end of the learning-rate range, return the change that moves this end outwards; None if
    `spec` already moved this end.

    Also return None in three cases: results get worse towards the end; trials failed at the end or lie beyond it; or the
    sampler prefers the neighbourhood of good trials. If the study searched only the learning rate, a single worse setting
    nearer to the end shows that results get worse. If all settings are equally good, an end is moved in at most 8 % of studies.
    """
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
            f"At least {MIN_BEST_SETTINGS_AT_END} of the best {BEST} settings lie in the {side}est third of the range of {name}, "
            "including the best one, so a better value may lie beyond this end of the range"
        )
        return SetRange(parameter=name, low=low, high=high, scale=now.scale, why=why)
    return None


def _best_trials_end(study: Study, name: str) -> RangeSide | None:
    """Return the end of the range at which the best trials lie; None if they lie at neither end or this end cannot be moved."""
    ranked = repeats.first_trial_per_setting(study.ranked())
    if len(ranked) < 2 * BEST or sampler.did_sampler_use_results(study):
        return None
    ended = [t for t in study.trials if study.ended[t.index]]
    tried, failed = study.positions(name, ended), failures.failure_masks(study).any[[t.index for t in ended]]
    best = study.positions(name, ranked[:BEST])
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
        turns = alone or worse_outwards or 2 * further[:BEST].sum() < further.sum()
        if not turns and not np.any((reach > 1 + 1e-9) | (failed & (reach >= outwards[0]))):
            return side
    return None
