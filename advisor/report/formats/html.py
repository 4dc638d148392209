"""The report as one self-contained page: no request leaves it, and its policy lets nothing run but its own one script."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from typing import Any

import jinja2
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup, escape

from advisor.model import words
from advisor.model.message import Code, Item, Message, Name
from advisor.report.figures import all_plots
from advisor.report.figures.ranges import range_rows
from advisor.report.figures.rounds import rounds_figure
from advisor.report.formats import view
from advisor.report.formats.embedded import embedded
from advisor.report.formats.index import WORDS, Outcome, in_order, tally
from advisor.report.model import ReportData
from advisor.report.text import headline, rounds
from advisor.system import resources

SCRIPTS = ("page.js", "plots.js", "table.js", "picked.js")
"""In the order in which they run."""


def render_html(report: ReportData) -> str:
    """The page. Complete without JavaScript; the script adds pointing, sorting, copying and the choice of theme."""
    environment = _environment()
    css, script = _asset(environment, "report.css"), _script(environment)
    cards = view.cards(report)
    statuses = view.by_status(report)
    return environment.get_template("report.html.j2").render(
        report=report,
        css=Markup(css),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        policy=_policy(css, script),
        headline=headline.headline(report),
        best_sentence=headline.best_sentence(report),
        certainty=headline.certainty(report),
        inferred=view.inferred(report),
        figures=headline.key_figures(report),
        cards=cards,
        below={c.ident: [b for b in cards if b.head == c.ident] for c in cards},
        statuses=statuses,
        tally=_tally(report),
        steps=view.steps(report),
        ranges=range_rows(report),
        todo=view.todo(cards),
        groups=all_plots.groups(report),
        gaps=all_plots.gaps(report),
        table=view.table(report),
        picked=view.picked(report),
        sheet=view.sheet(report),
        space=view.space(report),
        rounds=_rounds(report),
        expected=rounds.expected(report.next_studies[0].spec) if report.next_studies else (),
        numeric={n: p.numeric for n, p in report.spec.searched.items()},
        data=htmlsafe_json_dumps(embedded(report), separators=(",", ":")),
    )


def render_index(outcomes: Sequence[Outcome]) -> str:
    """The page that lists experiments, with links to their reports; without any script."""
    environment = _environment()
    css = _asset(environment, "report.css")
    return environment.get_template("index.html.j2").render(
        policy=_policy(css),
        css=Markup(css),  # noqa: S704 - our own file
        outcomes=in_order(outcomes),
        tally=tally(outcomes),
        words=WORDS,
    )


def render_live() -> tuple[str, str]:
    """The page around a report that is made anew as trials come in, and its Content-Security-Policy."""
    loader = jinja2.FileSystemLoader(resources.directory("templates"), encoding="utf-8")
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    css, script = (_asset(environment, name) for name in ("live.css", "live.js"))
    page = environment.get_template("live.html.j2").render(css=Markup(css), script=Markup(script))  # noqa: S704 - our own files
    return page, f"{_policy(css, script)}; connect-src 'self'; frame-src 'self'; frame-ancestors 'none'"


def _tally(report: ReportData) -> list[tuple[str, int, str]]:
    """(icon, how many, word) of the findings by severity, then what became of the other checks."""
    counts = [(s, sum(f.severity == s for f in report.heads), view.SEVERITY_WORDS[s]) for s in view.SEVERITY_WORDS]
    if below := len(report.findings) - len(report.heads):
        counts.append(("follows", below, "that follow from these" if below > 1 else "that follows from these"))
    status = {s: sum(1 for _ in report.with_status(s)) for s in ("quiet", "not-assessed", "broken")}
    passed = "check passed" if status["quiet"] == 1 else "checks passed"
    tally = [*counts, ("passed", status["quiet"], passed), ("unknown", status["not-assessed"], "not checked")]
    return [*tally, ("broken", status["broken"], "broken")] if status["broken"] else tally


def _rounds(report: ReportData) -> dict[str, Any] | None:
    """What the page says of the rounds; None without earlier ones."""
    history = report.history
    if history is None:
        return None
    return {
        "said": [*rounds.summary(history)[: None if not history.stop else -1], *history.said],
        "figure": rounds_figure(history),
        "rows": [rounds.row(r) for r in history.rounds],
        "signs": rounds.SIGNS,
        "rates": [rounds.rate(r) for r in history.hit_rates],
    }


# --- the environment ------------------------------------------------------------------------------------------------------------


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(resources.directory("templates"), encoding="utf-8"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "breakable": _breakable,
        "capital": words.capital,
        "clean": words.clean,
        "count": words.count,
        "follows": view.follows,
        "name": _name,
        "number": words.number,
        "prose": _prose,
        "sentence": _sentence,
        "setting": _setting,
    }
    return environment


def _asset(environment: jinja2.Environment, name: str) -> str:
    loader = environment.loader
    assert loader is not None
    return loader.get_source(environment, name)[0].strip()


def _script(environment: jinja2.Environment) -> str:
    """The page's one script: parts that share their names, without comments and indentation."""
    lines = [line.strip() for part in SCRIPTS for line in _asset(environment, part).splitlines()]
    lean = "\n".join(line for line in lines if line and not line.startswith("//"))
    return f'"use strict";\n(() => {{\n{lean}\n}})();'


def _policy(css: str, script: str | None = None) -> str:
    """The Content-Security-Policy of a page with this style sheet and this script; without one none runs."""
    allowed = {"style": css} | ({"script": script} if script is not None else {})
    ours = "".join(f"{kind}-src 'sha256-{_digest(text)}'; " for kind, text in allowed.items())
    return f"default-src 'none'; {ours}base-uri 'none'; form-action 'none'"


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _name(value: str, length: int = 40) -> Markup:
    """A name from the store: cut where it is long, whole when one points at it, isolated unless ASCII, which has one direction."""
    whole = words.clean(value)
    cut = words.shorten(whole, length)
    if cut == whole and whole.isascii():
        return escape(whole)
    return (
        Markup("<bdi>{}</bdi>").format(cut) if cut == whole else Markup('<bdi title="{}">{}</bdi>').format(whole, cut)
    )


def _breakable(value: str) -> Markup:
    """A name that may be broken after its slashes and underscores."""
    return Markup("<wbr>").join(re.split(r"(?<=[/_])", words.clean(value)))


def _setting(value: Any) -> Markup:
    """The value of a hyperparameter; words as names, numbers as they are."""
    return _name(value, 32) if isinstance(value, str) else escape(words.setting(value))


def _sentence(value: Message | str) -> Message | str:
    return value if isinstance(value, Message) else words.sentence(value)


def _prose(value: Message | str) -> Markup:
    """A sentence with names and `code` set apart."""
    if isinstance(value, Message):
        return Markup(value.render(_part))  # noqa: S704 - each part is escaped
    return _literal(value)


def _part(part: Item) -> str:
    if isinstance(part, Name | Code):
        return _code(str(part))
    return _literal(part) if isinstance(part, str) else escape(str(part))


def _literal(value: str) -> Markup:
    """Words of our own, in which `code` is set apart."""
    parts = re.split(r"`([^`]+)`", _kept_spaces(value))
    return Markup().join(_code(part) if i % 2 else escape(part) for i, part in enumerate(parts))


def _kept_spaces(value: str) -> str:
    """The text cleaned, with the space at either end that separates it from a value beside it."""
    return " " * value[:1].isspace() + words.clean(value) + " " * (value[-1:].isspace() and bool(value.strip()))


def _code(value: str) -> Markup:
    return Markup("<code>{}</code>").format(_name(value, 60))
