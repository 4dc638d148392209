"""Studies in the form of other tools' searches, one file per tool: spec in, text out."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from advisor.model.errors import AdvisorError

if TYPE_CHECKING:
    from advisor.interop.exports.content import Past, Trials
    from advisor.model.spec import StudySpec

KINDS = ("optuna", "ray", "wandb", "hydra", "algoperf")
"""The tools that a study can be exported to: a module each."""


def export(kind: str, spec: StudySpec, *, points: Trials | None = None, past: Sequence[Past] = ()) -> str:
    """The study in the form of a tool, one of `KINDS`.

    points: trials {parameter: value} to run, in place of the space (Optuna: ahead of what it draws from the space). past: trials so
    far, which only Optuna takes. Raises AdvisorError for what the tool has no way to say.
    """
    if kind not in KINDS:
        raise AdvisorError(f"there is no export {kind!r}; there are {', '.join(KINDS)}")
    if past and kind != "optuna":
        raise AdvisorError(f"{kind} takes no results of other trials; of the exports only optuna does")
    if points is not None and not points:
        raise AdvisorError("there is no trial to export; ask for at least one with -n")
    render = import_module(f"advisor.interop.exports.{kind}").render
    text: str = render(spec, points, past) if kind == "optuna" else render(spec, points)
    return text
