"""Exports a study to the search formats of other tools, one module per tool."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from advisor.model.errors import AdvisorError

if TYPE_CHECKING:
    from advisor.interop.exports.exporter import Exporter, PastTrial, Trials
    from advisor.model.spec import StudySpec

KINDS = ("optuna", "ray", "wandb", "hydra", "algoperf")
"""Names of the tools to export to. Each name is also a module in this package."""


def export(kind: str, spec: StudySpec, *, points: Trials | None = None, past: Sequence[PastTrial] = ()) -> str:
    """Return the study in the file format of one tool. kind: name of the tool, one of `KINDS`.

    points: trials as {parameter: value} to run instead of a search; Optuna runs them first and then searches the space. past:
    trials of the study that have ended; they are allowed only if `kind` is "optuna". Raises AdvisorError if the tool's format
    cannot express the study.
    """
    if kind not in KINDS:
        raise AdvisorError(f"there is no export {kind!r}; choose one of {', '.join(KINDS)}")
    if past and kind != "optuna":
        raise AdvisorError(f"{kind} does not accept results of past trials; only optuna does")
    if points is not None and not points:
        raise AdvisorError("there is no trial to export; ask for at least one with -n")
    from advisor.interop.exports.exporter import Export  # slow: it imports `advisor.model`

    exporter: Exporter = import_module(f"advisor.interop.exports.{kind}")
    return exporter.render(Export(spec, points, past))
