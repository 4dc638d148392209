"""Reads an MLflow study as an expert with the Deep Learning Tuning Playbook would, and writes the next one.

from advisor import analyze
report = analyze("my-experiment")
report.save("advisor-report")
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

__all__ = [
    "AdvisorError",
    "Report",
    "Rule",
    "Study",
    "StudySpec",
    "__version__",
    "analyze",
    "open_study",
    "report_trial",
]

_HOMES = {
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
    # Loaded on first use: a training host that imports advisor.contract, and `advisor --help`, need none of it.
    if name not in _HOMES:
        raise AttributeError(f"module 'advisor' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
