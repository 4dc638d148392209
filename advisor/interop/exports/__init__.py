"""Exports a study to the search formats of other tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from advisor.model.errors import AdvisorError

if TYPE_CHECKING:
    from advisor.interop.exports.search_spaces import PastTrial, TrialParams
    from advisor.model.spec import StudySpec

EXPORT_FORMATS = ("optuna", "ray", "wandb", "hydra", "algoperf")


def export(kind: str, spec: StudySpec, *, points: TrialParams | None = None, past: Sequence[PastTrial] = ()) -> str:
    """Return a study in the format of a tool. points: trials to export instead of a search space. past: ended trials, only for
    "optuna". Raises AdvisorError if the tool cannot express the study."""
    if past and kind != "optuna":
        raise AdvisorError(f"the format of {kind} cannot contain results of past trials; only optuna can")
    if points is not None and not points:
        raise AdvisorError("there is no trial to export; request at least one with -n")
    from advisor.interop.exports import optuna, search_spaces  # slow: they import `advisor.model`

    if kind == "optuna":
        return optuna.render_optuna(spec, points or (), past)
    text: str = getattr(search_spaces, f"render_{kind}")(spec, points)
    return text
