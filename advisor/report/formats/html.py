"""The report as one self-contained page. The page sends no request, and its Content-Security-Policy allows only its own script."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup, escape

from advisor.model import words
from advisor.model.message import Code, Message, MessagePart, Name, end_with_full_stop
from advisor.report.figures import all_plots
from advisor.report.figures.ranges import range_comparison
from advisor.report.figures.rounds import round_history_figure
from advisor.report.formats import sheet, view
from advisor.report.formats.index import EXPERIMENT_STATE_LABELS, AnalysisOutcome, count_experiment_states, sort_worst_first
from advisor.report.model import TRIAL_STATUS_LABELS, ReportData
from advisor.report.text import best_value, headline, history, run_command, study_diff
from advisor.system import resources

SCRIPT_FILES = ("page.js", "plots.js", "table.js", "selected_trial.js")
"""File names of the page's scripts, in execution order."""


def render_html(report: ReportData) -> str:
    """Return the page. The page is complete without JavaScript. Its script only adds tooltips, sorting, copying and themes."""
    environment = _template_environment()
    script_lines = [line.strip() for part in SCRIPT_FILES for line in _read_template_file(environment, part).splitlines()]
    code = "\n".join(line for line in script_lines if line and not line.startswith("//"))
    css, script = _read_template_file(environment, "report.css"), f'"use strict";\n(() => {{\n{code}\n}})();'
    cards = view.finding_cards(report)
    cards_to_act_on = view.cards_to_act_on(cards, headline.leading_finding(report))
    return environment.get_template("report.html.j2").render(
        report=report,
        css=Markup(css),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        policy=_content_security_policy(css, script),
        first_step=headline.headline_goal_and_reason(report),
        uncertainty=best_value.uncertainty(report),
        decisions=view.reading_decisions(report),
        stoppers=view.stopping_method_rows(report),
        cards=cards,
        statuses=view.verdicts_by_status(report),
        tally=_finding_tally_rows(report, cards_to_act_on),
        steps=view.planned_studies(report),
        ranges=range_comparison(report),
        todo=cards_to_act_on,
        selected=view.selected_trial_data(report),
        data=htmlsafe_json_dumps(view.page_data_block(report), separators=(",", ":")),
    )


def render_survey_page(outcomes: Sequence[AnalysisOutcome]) -> str:
    environment = _template_environment()
    css = _read_template_file(environment, "report.css")
    return environment.get_template("index.html.j2").render(
        policy=_content_security_policy(css),
        css=Markup(css),  # noqa: S704 - our own file
        outcomes=sort_worst_first(outcomes),
        tally=count_experiment_states(outcomes),
        labels=EXPERIMENT_STATE_LABELS,
    )


def render_live_page() -> tuple[str, str]:
    """Return the page that displays a live report in a frame, and its Content-Security-Policy."""
    environment = _template_environment()
    css, script = (_read_template_file(environment, name) for name in ("live.css", "live.js"))
    page = environment.get_template("live.html.j2").render(css=Markup(css), script=Markup(script))  # noqa: S704 - our own files
    return (page, f"{_content_security_policy(css, script)}; connect-src 'self'; frame-src 'self'; frame-ancestors 'none'")


def _finding_tally_rows(report: ReportData, todo: Sequence[view.FindingCard]) -> list[tuple[str, int, str]]:
    severity_rows = [(s, sum(f.severity == s for f in report.findings), label) for s, label in view.SEVERITY_LABELS.items()]
    if others := len(report.findings) - len(todo):
        severity_rows.append(("follows", others, "of these findings for later"))
    status = {s: sum(1 for _ in report.verdicts_with_status(s)) for s in ("quiet", "not-assessed", "broken")}
    passed_label = "check passed" if status["quiet"] == 1 else "checks passed"
    severity_rows += [("passed", status["quiet"], passed_label), ("unknown", status["not-assessed"], "not checked")]
    return [*severity_rows, ("broken", status["broken"], "broken")] if status["broken"] else severity_rows


def _template_environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(resources.resource_folder("templates"), encoding="utf-8"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template_modules = (all_plots, best_value, headline, history, run_command, sheet, study_diff, view, words)
    environment.globals |= {module.__name__.rpartition(".")[2]: module for module in template_modules}
    environment.filters |= {
        "breakable": _breakable_name,
        "capital": words.capitalise,
        "cells": _table_cells_markup,
        "clean": words.clean,
        "count": words.count,
        "explanation": view.explanation_sentence,
        "name": _name_markup,
        "number": words.number,
        "prose": _sentence_markup,
        "round_figure": round_history_figure,
        "round_row": history.row,
        "sentence": end_with_full_stop,
        "status": TRIAL_STATUS_LABELS.__getitem__,
    }
    return environment


def _read_template_file(environment: jinja2.Environment, name: str) -> str:
    loader = environment.loader
    assert loader is not None
    return loader.get_source(environment, name)[0].strip()


def _content_security_policy(css: str, script: str | None = None) -> str:
    inline_sources = {"style": css} | ({"script": script} if script is not None else {})
    hashes = {kind: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for kind, text in inline_sources.items()}
    own_sources = "".join(f"{kind}-src 'sha256-{value}'; " for kind, value in hashes.items())
    return f"default-src 'none'; {own_sources}base-uri 'none'; form-action 'none'"


def _name_markup(value: str, length: int = 40) -> Markup:
    """Return a name from the store as markup. A shortened name gets a tooltip; a name with non-ASCII characters gets an
    isolating element, so that the direction of its text does not affect the surrounding text."""
    full_name = words.clean(value)
    short_name = words.shorten(full_name, length)
    if short_name != full_name:
        return Markup('<bdi title="{}">{}</bdi>').format(full_name, short_name)
    return escape(full_name) if full_name.isascii() else Markup("<bdi>{}</bdi>").format(full_name)


def _breakable_name(value: str) -> Markup:
    return Markup("<wbr>").join(re.split(r"(?<=[/_])", words.clean(value)))


def _table_cells_markup(params: Mapping[str, Any], names: Sequence[str]) -> Markup:
    """Return table cells with the values of the hyperparameters `names`. This function is faster than a loop in the template."""
    cell_values = (params.get(name) for name in names)
    cells = (_name_markup(v, 32) if isinstance(v, str) else escape(words.setting(v)) for v in cell_values)
    return Markup("<td>").join([Markup(), *cells])


def _sentence_markup(value: Message | str) -> Markup:
    if not isinstance(value, Message):
        return _own_text_markup(value)

    def part_markup(part: MessagePart) -> str:
        if isinstance(part, Name | Code):
            return _code_markup(str(part))
        return _own_text_markup(part) if isinstance(part, str) else _keep_numbers_unbroken(str(part))

    return Markup(value.render(part_markup))  # noqa: S704 - each part is escaped


def _own_text_markup(value: str) -> Markup:
    """Return our own text as markup, with an element for each `code` span. Spaces at both ends separate parts of a sentence."""
    clean_text = " " * value[:1].isspace() + words.clean(value) + " " * (value[-1:].isspace() and bool(value.strip()))
    code_parts = re.split(r"`([^`]+)`", clean_text)
    return Markup().join(_code_markup(part) if i % 2 else _keep_numbers_unbroken(part) for i, part in enumerate(code_parts))


def _keep_numbers_unbroken(text: str) -> Markup:
    """Escape the text and prevent line breaks after the hyphen of a number such as 1e-4."""
    parts = re.split(r"(\d[\d.]*e-\d+)", text)
    return Markup().join(Markup('<span class="nb">{}</span>').format(p) if i % 2 else escape(p) for i, p in enumerate(parts))


def _code_markup(value: str) -> Markup:
    return Markup("<code>{}</code>").format(_name_markup(value, 60))
