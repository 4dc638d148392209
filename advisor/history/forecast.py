"""What the trials of a study say of those that the next one will run: a Gaussian process over all hyperparameters at once."""

from __future__ import annotations

import numpy as np

from advisor.computed.space import settings
from advisor.model.errors import AdvisorError
from advisor.model.prediction import BestBeyond
from advisor.model.spec import StudySpec
from advisor.model.study import Study
from advisor.planning.sampling.halton import sample
from advisor.stats import surface
from advisor.stats.importance import evenly_by_rank

MOST_POINTS = 200
"""Of the next study's trials that are looked at."""


def chance_beyond(study: Study, after: StudySpec, expects: BestBeyond) -> float | None:
    """How likely it is that the next study's own trials make the prediction come true; None where that cannot be said.

    The next study's points are known, as they are drawn by its seed. Far beyond all trials the model knows nothing and expects
    what is usual, so that it promises little there. Of many trials it looks at some, evenly over the ranks of their results, and of
    many points at the first of the sequence: its cost grows with the cube of their numbers.
    """
    tried = settings.read(study)
    fine = ~tried.failed
    try:
        points = list(sample(after, min(after.trials or len(tried), MOST_POINTS)))
    except AdvisorError:  # an adaptive sampler: its points follow from results
        return None
    names = [*tried.numeric, *tried.choices]
    new = [study.spec.parameters[n].to_unit([p.get(n, "") for p in points]) for n in names]
    some = np.flatnonzero(fine)[evenly_by_rank(tried.costs[fine])]
    known = [[u[some] for u in axes.values()] for axes in (tried.numeric, tried.choices)]
    drawn = surface.results_at(known[0], known[1], tried.costs[some], new)
    if not len(drawn) or expects.parameter not in names:
        return None
    at = new[names.index(expects.parameter)]
    out = at > 1 if expects.side == "high" else at < 0
    if not out.any():
        return None
    rivals = [drawn[:, ~out].min(1)] if not out.all() else []
    if expects.than is not None:
        rivals.append(np.full(len(drawn), expects.than if study.minimize else -expects.than))
    rival = np.min(rivals, axis=0) if rivals else np.full(len(drawn), np.inf)
    return float(np.mean(drawn[:, out].min(1) < rival))
