"""The page's one block of data: what its script shows of a trial that is picked or pointed at, where the page does not say it."""

from __future__ import annotations

from typing import Any

from advisor.model import words
from advisor.report.formats import view
from advisor.report.model import ReportData
from advisor.report.plot_data import sketch


def embedded(report: ReportData) -> dict[str, Any]:
    """Plain values for JSON; names are cleaned and cut, curves as `sketch.py` writes them."""
    names = list(report.spec.searched)
    index = {t.id: i for i, t in enumerate(report.figures.trials)}
    listed = {index for index, _ in view.table(report)}
    return {
        "metric": words.clean(report.spec.objective.metric),
        "params": [words.shorten(words.clean(n), 40) for n in names],
        "trials": {
            str(i): [
                words.shorten(words.clean(t.name), 60),
                words.number(t.best) if t.best is not None else t.status,
                *(words.shorten(words.setting(t.params.get(n)), 40) for n in names),
            ]
            for i, t in enumerate(report.figures.trials)
            if i not in listed
        },
        # Where the table lists all trials, it has their order and their links.
        "order": [i for i, _ in view.ranked(report)] if len(listed) < len(report.figures.trials) else None,
        "runs": report.runs_url,
        "ids": {str(i): t.id for i, t in enumerate(report.figures.trials) if report.runs_url and i not in listed},
        "levels": sketch.LEVELS,
        "sketches": [
            {"metric": words.clean(s.metric), "columns": s.columns, "of": s.curves} for s in report.figures.sketches
        ],
        "best": [index[t] for t in report.figures.best_trials],
    }
