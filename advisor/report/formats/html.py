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
from advisor.report.formats.embedded import page_data_block
from advisor.report.formats.index import EXPERIMENT_STATE_LABELS, AnalysisOutcome, count_experiment_states, sort_worst_first
from advisor.report.model import TRIAL_STATUS_LABELS, ReportData
from advisor.report.text import best_value, headline, history
from advisor.report.text.run_command import next_study_command, task_after_command, tasks_before_command
from advisor.system import resources

SCRIPT_FILES = ("page.js", "plots.js", "table.js", "selected_trial.js")
"""File names of the page's scripts, in execution order."""


def render_html(report: ReportData) -> str:
    """Return the page. The page is complete without JavaScript: its script only adds tooltips, sorting, copying and themes."""
    environment = _template_environment()
    css, script = _read_template_file(environment, "report.css"), _page_script(environment)
    cards = view.finding_cards(report)
    todo = view.cards_to_act_on(cards, headline.leading_finding(report))
    return environment.get_template("report.html.j2").render(
        report=report,
        css=Markup(css),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        policy=_content_security_policy(css, script),
        headline=headline.headline(report),
        first_step=headline.headline_goal_and_reason(report),
        best_sentence=best_value.best_sentence(report),
        certainty=best_value.certainty(report),
        decisions=view.reading_decisions(report),
        stoppers=view.stopping_method_rows(report),
        run_command=next_study_command(report),
        before_command=tasks_before_command(report),
        after_command=task_after_command(report),
        figures=best_value.key_numbers(report),
        cards=cards,
        below={c.ident: [b for b in cards if b.head == c.ident] for c in cards},
        statuses=view.verdicts_by_status(report),
        not_applicable=view.count_inapplicable_checks(report),
        tally=_finding_tally_rows(report, todo),
        runs_study=headline.names_unrequested_study(report),
        steps=view.planned_studies(report),
        ranges=range_comparison(report),
        todo=todo,
        changes=view.explained_study_changes(report),
        groups=all_plots.plot_groups(report),
        missing_plots=all_plots.missing_plot_sentences(report),
        table=view.trials_in_table(report),
        selected=view.selected_trial_data(report),
        sheet=sheet.study_description_rows(report),
        space=sheet.search_space_rows(report),
        rounds=_round_template_data(report),
        track_record=history.advice_track_record(report),
        predictions=history.study_predictions(report.next_studies[0].spec) if report.next_studies else (),
        numeric={n: p.numeric for n, p in report.spec.searched.items()},
        data=htmlsafe_json_dumps(page_data_block(report), separators=(",", ":")),
    )


def render_survey_page(outcomes: Sequence[AnalysisOutcome]) -> str:
    """Return a page without scripts that lists the experiments, with links to their reports."""
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
    rows = [(s, sum(f.severity == s for f in report.findings), label) for s, label in view.SEVERITY_LABELS.items()]
    if others := len(report.findings) - len(todo):
        rows.append(("follows", others, "of these findings for later"))
    status = {s: sum(1 for _ in report.verdicts_with_status(s)) for s in ("quiet", "not-assessed", "broken")}
    passed = "check passed" if status["quiet"] == 1 else "checks passed"
    rows += [("passed", status["quiet"], passed), ("unknown", status["not-assessed"], "not checked")]
    return [*rows, ("broken", status["broken"], "broken")] if status["broken"] else rows


def _round_template_data(report: ReportData) -> dict[str, Any] | None:
    """Return the template data on the study's rounds; None for a first round."""
    past = report.history
    if past is None:
        return None
    return {
        "summary": history.round_summary(past)[: None if not past.stop else -1],
        "lines": past.said,
        "figure": round_history_figure(past),
        "rows": [history.row(r) for r in past.rounds],
        "icons": history.JUDGEMENT_ICONS,
        "judgements": history.JUDGEMENTS,
        "rates": [history.hit_rate_text(r) for r in past.hit_rates],
    }


def _template_environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(resources.resource_folder("templates"), encoding="utf-8"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
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
        "sentence": end_with_full_stop,
        "status": TRIAL_STATUS_LABELS.__getitem__,
    }
    return environment


def _read_template_file(environment: jinja2.Environment, name: str) -> str:
    loader = environment.loader
    assert loader is not None
    return loader.get_source(environment, name)[0].strip()


def _page_script(environment: jinja2.Environment) -> str:
    """Return the page's script: all files in one scope, without comments and indentation."""
    lines = [line.strip() for part in SCRIPT_FILES for line in _read_template_file(environment, part).splitlines()]
    lean = "\n".join(line for line in lines if line and not line.startswith("//"))
    return f'"use strict";\n(() => {{\n{lean}\n}})();'


def _content_security_policy(css: str, script: str | None = None) -> str:
    allowed = {"style": css} | ({"script": script} if script is not None else {})
    ours = "".join(f"{kind}-src 'sha256-{_content_policy_hash(text)}'; " for kind, text in allowed.items())
    return f"default-src 'none'; {ours}base-uri 'none'; form-action 'none'"


def _content_policy_hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _name_markup(value: str, length: int = 40) -> Markup:
    """Return a name from the store as markup. A shortened name gets a tooltip; a name with non-ASCII characters gets an
    isolating element, so that the direction of its text does not affect the surrounding text."""
    whole = words.clean(value)
    short = words.shorten(whole, length)
    if short != whole:
        return Markup('<bdi title="{}">{}</bdi>').format(whole, short)
    return escape(whole) if whole.isascii() else Markup("<bdi>{}</bdi>").format(whole)


def _breakable_name(value: str) -> Markup:
    return Markup("<wbr>").join(re.split(r"(?<=[/_])", words.clean(value)))


def _parameter_value_markup(value: Any) -> Markup:
    """Return the value of a hyperparameter as markup; strings are treated as names."""
    return _name_markup(value, 32) if isinstance(value, str) else escape(words.setting(value))


def _table_cells_markup(params: Mapping[str, Any], names: Sequence[str]) -> Markup:
    """Return table cells with these hyperparameters' values, faster than a loop in the template."""
    return Markup("<td>").join([Markup(), *(_parameter_value_markup(params.get(name)) for name in names)])


def _sentence_markup(value: Message | str) -> Markup:
    if isinstance(value, Message):
        return Markup(value.render(_message_part_markup))  # noqa: S704 - each part is escaped
    return _own_text_markup(value)


def _message_part_markup(part: MessagePart) -> str:
    if isinstance(part, Name | Code):
        return _code_markup(str(part))
    return _own_text_markup(part) if isinstance(part, str) else _keep_numbers_unbroken(str(part))


def _own_text_markup(value: str) -> Markup:
    """Return our own text as markup, with an element for each `code` span."""
    parts = re.split(r"`([^`]+)`", _clean_sentence_part(value))
    return Markup().join(_code_markup(part) if i % 2 else _keep_numbers_unbroken(part) for i, part in enumerate(parts))


def _keep_numbers_unbroken(text: str) -> Markup:
    """Return the escaped text, with markup that prevents a line break after the hyphen of a number such as 1e-4."""
    parts = re.split(r"(\d[\d.]*e-\d+)", text)
    return Markup().join(Markup('<span class="nb">{}</span>').format(p) if i % 2 else escape(p) for i, p in enumerate(parts))


def _clean_sentence_part(value: str) -> str:
    """Return the cleaned text. Leading and trailing spaces remain, because they separate this part of a sentence from the
    adjacent parts."""
    return " " * value[:1].isspace() + words.clean(value) + " " * (value[-1:].isspace() and bool(value.strip()))


def _code_markup(value: str) -> Markup:
    return Markup("<code>{}</code>").format(_name_markup(value, 60))
