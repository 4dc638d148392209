"""Analyses an MLflow study by the rules of the Deep Learning Tuning Playbook, and plans the next study.

Example: `advisor.analyze("my-experiment").save("advisor-report")`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from advisor.analysis import analyze
    from advisor.engine.rule import Rule
    from advisor.execution.api import open_study, report_trial
    from advisor.model.errors import AdvisorError
    from advisor.model.spec import StudySpec
    from advisor.model.study import Study
    from advisor.report import Report

__all__ = ["AdvisorError", "Report", "Rule", "Study", "StudySpec", "__version__", "analyze", "open_study", "report_trial"]

_EXPORT_MODULES = {
    "analyze": "advisor.analysis",
    "AdvisorError": "advisor.model.errors",
    "open_study": "advisor.execution.api",
    "report_trial": "advisor.execution.api",
    "Report": "advisor.report",
    "Rule": "advisor.engine.rule",
    "StudySpec": "advisor.model.spec",
    "Study": "advisor.model.study",
}


def __getattr__(name: str) -> Any:
    # Import the analysis on first use, because training processes and `advisor --help` do not need its slow dependencies.
    if name not in _EXPORT_MODULES:
        raise AttributeError(f"module 'advisor' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_EXPORT_MODULES[name]), name)
