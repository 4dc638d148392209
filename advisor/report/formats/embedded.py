"""The page's data block. The data block holds the data of selectable trials that the page's HTML does not contain."""

from __future__ import annotations

from typing import Any

from advisor.model.words import clean, number, setting, shorten
from advisor.report.formats import view
from advisor.report.model import ReportData
from advisor.report.plot_data import compact_curves


def page_data_block(report: ReportData) -> dict[str, Any]:
    """Return JSON-compatible values. Names are cleaned and shortened; curves are encoded as in `compact_curves.py`."""
    figures, names = report.figures, list(report.spec.searched)
    listed = {index for index, _ in view.trials_in_table(report)}
    unlisted = {i: t for i, t in enumerate(figures.trials) if i not in listed}
    return {
        "metric": clean(report.spec.objective.metric),
        "params": [shorten(n, 40) for n in names],
        "trials": {
            str(i): [
                shorten(t.name, 60),
                number(t.best) if t.best is not None else t.status,
                *(shorten(setting(t.params.get(n)), 40) for n in names),
            ]
            for i, t in unlisted.items()
        },
        # If the page's table lists all trials, it already contains their order and links.
        "order": [i for i, _ in view.ranked_trials(report)] if unlisted else None,
        "runs": report.runs_url,
        "ids": {str(i): t.id for i, t in unlisted.items() if report.runs_url},
        "levels": compact_curves.CURVE_HEIGHT_CHARACTERS,
        "curves": [{"metric": clean(c.metric), "columns": c.columns, "of": c.curves} for c in figures.compact_curves],
        "best": [figures.index[t] for t in figures.best_trials],
    }
