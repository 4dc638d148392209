"""The report as one self-contained page. The page sends no request, and its policy allows only its own script."""

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
from advisor.model.message import Code, Item, Message, Name, as_sentence
from advisor.report.figures import all_plots
from advisor.report.figures.ranges import range_rows
from advisor.report.figures.rounds import rounds_figure
from advisor.report.formats import view
from advisor.report.formats.embedded import embedded
from advisor.report.formats.index import LABELS, Outcome, in_order, tally
from advisor.report.model import ReportData
from advisor.report.text import headline, history
from advisor.report.text.run_command import run_command
from advisor.system import resources

SCRIPTS = ("page.js", "plots.js", "table.js", "selected_trial.js")
"""File names of the page's scripts, in execution order."""


def render_html(report: ReportData) -> str:
    """Return the page. It is complete without JavaScript; the script adds tooltips, sorting, copying and themes."""
    environment = _environment()
    css, script = _asset(environment, "report.css"), _script(environment)
    cards = view.cards(report)
    return environment.get_template("report.html.j2").render(
        report=report,
        css=Markup(css),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        policy=_policy(css, script),
        headline=headline.headline(report),
        first_step=headline.first_step(report),
        best_sentence=headline.best_sentence(report),
        certainty=headline.certainty(report),
        decisions=view.decisions(report),
        run_command=run_command(report),
        figures=headline.key_figures(report),
        cards=cards,
        below={c.ident: [b for b in cards if b.head == c.ident] for c in cards},
        statuses=view.by_status(report),
        not_applicable=view.not_applicable(report),
        tally=_tally(report),
        steps=view.steps(report),
        ranges=range_rows(report),
        todo=view.todo(cards),
        groups=all_plots.groups(report),
        missing_plots=all_plots.missing_plots(report),
        table=view.table(report),
        selected=view.selected_trial(report),
        sheet=view.sheet(report),
        space=view.space(report),
        rounds=_rounds(report),
        track_record=history.track_record(report),
        predictions=history.predictions(report.next_studies[0].spec) if report.next_studies else (),
        numeric={n: p.numeric for n, p in report.spec.searched.items()},
        data=htmlsafe_json_dumps(embedded(report), separators=(",", ":")),
    )


def render_index(outcomes: Sequence[Outcome]) -> str:
    """Return a page without script that lists experiments with links to their reports."""
    environment = _environment()
    css = _asset(environment, "report.css")
    return environment.get_template("index.html.j2").render(
        policy=_policy(css),
        css=Markup(css),  # noqa: S704 - our own file
        outcomes=in_order(outcomes),
        tally=tally(outcomes),
        labels=LABELS,
    )


def render_live() -> tuple[str, str]:
    """Return the page that displays a live report in a frame, and its Content-Security-Policy."""
    environment = _environment()
    css, script = (_asset(environment, name) for name in ("live.css", "live.js"))
    page = environment.get_template("live.html.j2").render(css=Markup(css), script=Markup(script))  # noqa: S704 - our own files
    return page, f"{_policy(css, script)}; connect-src 'self'; frame-src 'self'; frame-ancestors 'none'"


def _tally(report: ReportData) -> list[tuple[str, int, str]]:
    """Return (icon, count, label) rows: findings by severity, then checks without a finding by status."""
    rows = [(s, sum(f.severity == s for f in report.heads), label) for s, label in view.SEVERITY_LABELS.items()]
    if below := len(report.findings) - len(report.heads):
        rows.append(("follows", below, "explained by these"))
    status = {s: sum(1 for _ in report.with_status(s)) for s in ("quiet", "not-assessed", "broken")}
    passed = "check passed" if status["quiet"] == 1 else "checks passed"
    rows += [("passed", status["quiet"], passed), ("unknown", status["not-assessed"], "not checked")]
    return [*rows, ("broken", status["broken"], "broken")] if status["broken"] else rows


def _rounds(report: ReportData) -> dict[str, Any] | None:
    """Return the template data on the study's rounds; None for a first round."""
    past = report.history
    if past is None:
        return None
    return {
        "lines": [*history.summary(past)[: None if not past.stop else -1], *past.said],
        "figure": rounds_figure(past),
        "rows": [history.row(r) for r in past.rounds],
        "icons": history.ICONS,
        "judgements": history.JUDGEMENTS,
        "rates": [history.hit_rate(r) for r in past.hit_rates],
    }


# --- the environment ------------------------------------------------------------------------------------------------------------


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(resources.resource_folder("templates"), encoding="utf-8"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "breakable": _breakable,
        "capital": words.capital,
        "cells": _cells,
        "clean": words.clean,
        "count": words.count,
        "explanation": view.explanation,
        "name": _name,
        "number": words.number,
        "prose": _prose,
        "sentence": as_sentence,
    }
    return environment


def _asset(environment: jinja2.Environment, name: str) -> str:
    loader = environment.loader
    assert loader is not None
    return loader.get_source(environment, name)[0].strip()


def _script(environment: jinja2.Environment) -> str:
    """Return the page's script: all parts in one scope, without comments and indentation."""
    lines = [line.strip() for part in SCRIPTS for line in _asset(environment, part).splitlines()]
    lean = "\n".join(line for line in lines if line and not line.startswith("//"))
    return f'"use strict";\n(() => {{\n{lean}\n}})();'


def _policy(css: str, script: str | None = None) -> str:
    """Return the Content-Security-Policy of a page that allows only this style sheet and this script; None allows no script."""
    allowed = {"style": css} | ({"script": script} if script is not None else {})
    ours = "".join(f"{kind}-src 'sha256-{_digest(text)}'; " for kind, text in allowed.items())
    return f"default-src 'none'; {ours}base-uri 'none'; form-action 'none'"


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _name(value: str, length: int = 40) -> Markup:
    """Return a name from the store, shortened with a tooltip. Names with non-ASCII characters are isolated for text direction."""
    whole = words.clean(value)
    short = words.shorten(whole, length)
    if short != whole:
        return Markup('<bdi title="{}">{}</bdi>').format(whole, short)
    return escape(whole) if whole.isascii() else Markup("<bdi>{}</bdi>").format(whole)


def _breakable(value: str) -> Markup:
    """Return the name with line-break opportunities after slashes and underscores."""
    return Markup("<wbr>").join(re.split(r"(?<=[/_])", words.clean(value)))


def _setting(value: Any) -> Markup:
    """Return the value of a hyperparameter as markup; strings are treated as names."""
    return _name(value, 32) if isinstance(value, str) else escape(words.setting(value))


def _cells(params: Mapping[str, Any], names: Sequence[str]) -> Markup:
    """Return table cells with the values of these hyperparameters; faster than a loop in the template."""
    return Markup("<td>").join([Markup(), *(_setting(params.get(name)) for name in names)])


def _prose(value: Message | str) -> Markup:
    """Return the sentence as markup, with its names and `code` marked up."""
    if isinstance(value, Message):
        return Markup(value.render(_part))  # noqa: S704 - each part is escaped
    return _literal(value)


def _part(part: Item) -> str:
    if isinstance(part, Name | Code):
        return _code(str(part))
    return _literal(part) if isinstance(part, str) else escape(str(part))


def _literal(value: str) -> Markup:
    """Return our own text as markup, with `code` marked up."""
    parts = re.split(r"`([^`]+)`", _clean_part(value))
    return Markup().join(_code(part) if i % 2 else escape(part) for i, part in enumerate(parts))


def _clean_part(value: str) -> str:
    """Return the cleaned text with its leading and trailing spaces, which separate it from its neighbours."""
    return " " * value[:1].isspace() + words.clean(value) + " " * (value[-1:].isspace() and bool(value.strip()))


def _code(value: str) -> Markup:
    return Markup("<code>{}</code>").format(_name(value, 60))
