"""Worked examples: a recorded study for each chapter of the rules, analysed as the site is built, so that none can go stale."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from reference import ROOT, rules

from advisor.analysis import analyze_study
from advisor.model.finding import Finding
from advisor.model.words import confidence, number, sentence
from advisor.report import Report
from advisor.report.formats import view

sys.path.insert(0, str(ROOT / "benchmarks" / "quality"))
from cases import RECORDED, Case, load_cases


@dataclass(frozen=True)
class Example:
    """A recorded study, the rule whose finding it shows, and which picture of the report shows that best."""

    chapter: str
    study: str
    rule: str
    title: str
    plot: str | None = None
    """Heading among the report's plots; None: the finding's own pictures."""


EXAMPLES = (
    Example("pipeline", "last-checkpoint", "ckpt-best-lost", "The best step was not kept"),
    Example("stability", "bad-batches", "stability-mid", "A loss that jumps"),
    Example("space", "lr-range-low-mlp", "space-boundary", "A range that ends too early"),
    Example("curves", "no-regulariser-mlp", "curve-overfitting", "Trials that overfit"),
    Example("steps", "decay-ends-early", "decay-too-low", "A decay that ends too early"),
    Example("batch", "loader-slow", "input-bound", "Steps that wait for data"),
    Example("decision", "configurations-alike", "adopt", "Two settings that are as good", "Best trial for each value"),
)


def nav() -> list[str]:
    """The examples' pages."""
    return [f"examples/{example.chapter}.md" for example in EXAMPLES]


def pages() -> Mapping[str, str]:
    """The examples' pages by path, and the style sheet of their pictures."""
    made = {f"examples/{example.chapter}.md": _page(example) for example in EXAMPLES}
    return {**made, "picture.css": _style(_reports(EXAMPLES[0].study).to_html())}


@cache
def _cases() -> Mapping[str, Case]:
    return {case.raw["studies"][0]: case for case in reversed(load_cases([RECORDED]))}


@cache
def _reports(study: str) -> Report:
    return analyze_study(_cases()[study].study(), rules=rules())


def _page(example: Example) -> str:
    report = _reports(example.study)
    index, finding = next((i, f) for i, f in enumerate(report.findings) if f.rule == example.rule)
    page = report.to_html()
    pictures = _in_plots(page, example.plot) if example.plot else _in_card(page, view.cards(report)[index].ident)
    return "\n\n".join(
        [
            f"# {example.chapter.capitalize()}: {example.title[0].lower()}{example.title[1:]}",
            f"Trainings of our own, recorded with one cause switched on: {_cases()[example.study].raw['kind']}. What follows is "
            "what `advisor analyze` says of the recording, word for word; this page is made anew with the site.",
            "## The study",
            _study(report),
            "## What was found",
            _quoted(finding),
            f'<div class="picture">{pictures}</div>',
            f"The rule {_link(finding.rule)} says how it knows; its section of the playbook is “{finding.playbook}”.",
            "## What to do",
            sentence(str(finding.action)),
            *([f"It waits for a later study: {sentence(why)}"] if (why := report.reason_deferred(finding)) else []),
            _others(report, finding),
            "## The next study",
            _next(report),
        ]
    )


def _study(report: Report) -> str:
    shown = ("Study", "Objective", "Trials", "Best value", "Training steps")
    head, *rows = (f"| {what} | {value} |" for what, value in view.sheet(report) if what in shown)
    searched = [
        f"| `{name}` | {domain} |" for name, _, domain, *_ in view.space(report) if name in report.spec.searched
    ]
    return "\n".join([head, "|---|---|", *rows, *searched])


def _quoted(finding: Finding) -> str:
    _, sure = confidence(finding.confidence)
    words = f"**{view.SEVERITY_WORDS[finding.severity]}** ({sure.lower()}, {number(finding.confidence, 2)} of 1)"
    follows = f" {sentence(why)}" if (why := view.follows(finding)) is not None else ""
    return f"> {words}: {sentence(str(finding.message))}{follows}"


def _others(report: Report, finding: Finding) -> str:
    also = dict.fromkeys(f.rule for f in report.findings if f.rule != finding.rule)
    return f"The same report also speaks of {', '.join(map(_link, also))}." if also else "Nothing else was found."


def _link(rule: str) -> str:
    return f"[`{rule}`](../rules/{rule}.md)"


def _next(report: Report) -> str:
    if not report.next_studies:
        return "None was written: no finding asks for one."
    first, *later = report.next_studies
    more = f" After it come {', '.join(f'`next/{study.file}`' for study in later)}." if later else ""
    return f"`next/{first.file}`, ready for `advisor run`.{more}\n\n```yaml\n{first.yaml}```"


# --- the report's own pictures ----------------------------------------------------------------------------------------------------


def _in_card(page: str, ident: str) -> str:
    """The pictures of a finding, as the report's page shows them."""
    return _figures(page, re.split(r"</?article", page.partition(f'id="{ident}"')[2], maxsplit=1)[0])


def _in_plots(page: str, heading: str) -> str:
    """The pictures under a heading of the report's plots."""
    return _figures(page, page.partition(f"<summary>{heading}")[2].partition("</details>")[0])


def _figures(page: str, part: str) -> str:
    """The pictures in a part of the page, with what they share with others, each on one line."""
    found = re.findall(r'<figure class="plot">.*?</figure>', part, re.DOTALL)
    if not found:
        raise LookupError("the report has no such picture")
    whole = (
        re.sub(r'<use((?: class="[^"]*")?) href="#([^"]+)"/>', lambda m: _shared(page, m), figure) for figure in found
    )
    return "".join(re.sub(r"\s*\n\s*", "", figure) for figure in whole)


def _shared(page: str, use: re.Match[str]) -> str:
    """What a `<use>` refers to, in its place."""
    start = re.search(rf'<(\w+)[^>]*\bid="{re.escape(use[2])}"[^>]*>', page)
    assert start is not None
    end, depth = start.end(), 0 if start[0].endswith("/>") else 1
    for tag in re.finditer(rf"<(/?){start[1]}\b[^>]*?(/?)>", page[end:]) if depth else ():
        depth += -1 if tag[1] else 0 if tag[2] else 1
        if depth == 0:
            end += tag.end()
            break
    element = page[start.start() : end].replace(f' id="{use[2]}"', "", 1)
    return f"<g{use[1]}>{element}</g>"


def _style(page: str) -> str:
    """The report's style sheet, nested so that it holds for the pictures alone, in the site's light and dark."""
    found = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert found is not None
    nested = found[1].replace(":root{", "&{")
    for theirs, ours in (("light", "default"), ("dark", "slate")):
        nested = nested.replace(f":root[data-theme={theirs}]", f"[data-md-color-scheme={ours}] &")
    return f".picture{{{nested}\n}}\n"
