"""How much each searched hyperparameter matters in a study."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.computed import computed
from advisor.computed.space import settings
from advisor.model.finding import MissingData
from advisor.model.space import FloatArray, counts_training
from advisor.model.study import Study
from advisor.stats import importance


@dataclass(frozen=True)
class Importances:
    """The importance of each hyperparameter that was varied, d of them, other than the length of the training."""

    names: tuple[str, ...]
    tried: settings.Settings
    response: importance.Response
    total: FloatArray
    """Shape (draws, d): share of the variance between trials that goes with each, alone and with others."""
    p: float
    """How often results that have nothing to do with the hyperparameters would show as much."""

    def said(self, axis: int) -> str:
        """The importance of one in words: "12 % (5 to 20 %)" with a 90 % interval."""
        low, high = np.quantile(self.total[:, axis], [0.05, 0.95])
        return f"{min(self.total[:, axis].mean(), 1):.0%} ({min(low, 1):.0%} to {min(high, 1):.0%})"


@computed
def read(study: Study) -> Importances:
    """The importances in this study. Raises MissingData where fewer than 8 settings ended, or none with a result."""
    tried = settings.read(study)
    fine = int((~tried.failed).sum())
    if len(tried) < importance.MIN_TRIALS or fine < importance.MIN_TRIALS // 2:
        raise MissingData(
            f"{len(tried)} distinct settings ended, {fine} of them with a result; it takes {importance.MIN_TRIALS}, and "
            f"{importance.MIN_TRIALS // 2} with a result, to tell what matters"
        )
    numeric = {n: u for n, u in tried.numeric.items() if _varied(u) and not counts_training(n)}
    choices = {n: u for n, u in tried.choices.items() if _varied(u)}
    if not numeric and not choices:
        raise MissingData("no hyperparameter was varied; log the ones that the study searches")
    response = importance.Response(list(numeric.values()), list(choices.values()), tried.costs)
    return Importances((*numeric, *choices), tried, response, response.total(), response.p())


def _varied(positions: FloatArray) -> bool:
    known = np.isfinite(positions)
    return len(np.unique(positions[known])) > 1 or bool(known.any() and not known.all())
