"""Exports a study to the search formats of other tools, with one module for each tool."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from advisor.model.errors import AdvisorError

if TYPE_CHECKING:
    from advisor.interop.exports.exporter import Exporter, PastTrial, TrialParams
    from advisor.model.spec import StudySpec

KINDS = ("optuna", "ray", "wandb", "hydra", "algoperf")
"""Names of the tools, and of the modules that write their formats."""


def export(kind: str, spec: StudySpec, *, points: TrialParams | None = None, past: Sequence[PastTrial] = ()) -> str:
    """Return a study in the file format of another tool. kind: name of the tool, one of `KINDS`.

    points: trials as {parameter: value} to run instead of a search. past: ended trials of the study, only for "optuna". Raises
    AdvisorError if the tool's format cannot express the study.
    """
    if kind not in KINDS:
        raise AdvisorError(f"there is no export {kind!r}; choose one of {', '.join(KINDS)}")
    if past and kind != "optuna":
        raise AdvisorError(f"the format of {kind} cannot contain results of past trials; only optuna can")
    if points is not None and not points:
        raise AdvisorError("there is no trial to export; request at least one with -n")
    from advisor.interop.exports.exporter import StudyExport  # slow: it imports `advisor.model`

    exporter: Exporter = import_module(f"advisor.interop.exports.{kind}")
    return exporter.render(StudyExport(spec, points, past))
