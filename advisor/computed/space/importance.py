"""Computes the importance of each hyperparameter that a study searched."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.computed import computed
from advisor.computed.space import settings
from advisor.model.finding import MissingData
from advisor.model.message import Message, Percent, say
from advisor.model.space import FloatArray, is_training_length
from advisor.model.study import Study
from advisor.stats import importance

SIGNIFICANCE_LEVEL = 0.05


@dataclass(frozen=True)
class Importances:
    """The importance of each of the d varied hyperparameters, except those that set the training length."""

    names: tuple[str, ...]
    tried_settings: settings.Settings
    response: importance.ResponseModel
    total_shares: FloatArray
    """Share of the variance of the results that each hyperparameter explains, alone and in interactions, shape (draws, d)."""
    p_value: float
    """Probability that results which depend on no hyperparameter seem to depend on them this strongly by chance."""

    def share_text(self, axis: int) -> Message:
        """Return the importance of a hyperparameter as text, such as "12 % (90 % interval 5 % to 20 %)"."""
        draws = self.total_shares[:, axis]
        mean, low, high = (Percent(float(min(x, 1))) for x in (draws.mean(), *np.quantile(draws, [0.05, 0.95])))
        return say("{mean} (90 % interval {low} to {high})", mean=mean, low=low, high=high)


@computed
def compute_importances(study: Study) -> Importances:
    """Compute the importance of each hyperparameter; settings that ran out of memory are ignored. Raises MissingData if fewer
    than 8 settings ended, if fewer than 4 settings have a result, or if many trials were pruned."""
    settings.require_unpruned(study)
    tried = settings.settings_within_memory(study)
    tried.require_settings(importance.MIN_TRIALS_FOR_IMPORTANCE, importance.MIN_TRIALS_FOR_IMPORTANCE // 2)
    numeric = {n: u for n, u in tried.numeric.items() if _is_varied(u) and not is_training_length(n)}
    choices = {n: u for n, u in tried.choices.items() if _is_varied(u)}
    if not numeric and not choices:
        raise MissingData("no hyperparameter was varied; log the hyperparameters that the study searches", needs="searched")
    response = importance.ResponseModel(list(numeric.values()), list(choices.values()), tried.costs)
    others = ((n, u) for n, u in tried.unexamined_positions.items() if _is_varied(u) and not is_training_length(n))
    p_value = response.p_value([(u, study.searched[n].numeric) for n, u in others])
    return Importances((*numeric, *choices), tried, response, response.total_effects(), p_value)


def mean_importances(study: Study) -> dict[str, float]:
    """Return the mean importance of each hyperparameter; empty if none has a significant effect."""
    try:
        importances = compute_importances(study)
    except MissingData:
        return {}
    if importances.p_value > SIGNIFICANCE_LEVEL:
        return {}
    return dict(zip(importances.names, importances.total_shares.mean(axis=0).tolist(), strict=True))


def _is_varied(positions: FloatArray) -> bool:
    is_known = np.isfinite(positions)
    return len(np.unique(positions[is_known])) > 1 or bool(is_known.any() and not is_known.all())
