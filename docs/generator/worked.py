"""Generates a worked example for each chapter of the rules: a recorded study, analyzed during the build of the site."""

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
from advisor.report.formats import sheet, view

sys.path.insert(0, str(ROOT / "benchmarks" / "quality"))
from cases import PLAIN, RECORDED, Case, load_cases


@dataclass(frozen=True)
class Example:
    """A recorded study, the rule whose finding to show, and the plot to show with it."""

    chapter: str
    study: str
    rule: str
    title: str
    plot: str | None = None
    """Heading of a plot of the report; None: the plots of the finding."""


EXAMPLES = (
    Example("pipeline", "last-checkpoint", "ckpt-best-lost", "The best step was not kept"),
    Example("stability", "bad-batches", "stability-mid", "A loss that jumps"),
    Example("space", "lr-range-low-mlp", "space-boundary", "A range that ends too early"),
    Example("curves", "no-regulariser-mlp", "curve-overfitting", "Trials that overfit"),
    Example("steps", "decay-ends-early", "decay-too-low", "A decay that ends too early"),
    Example("batch", "loader-slow", "input-bound", "Steps that wait for data"),
    Example("optimizer", "adam-epsilon-large", "adam-epsilon", "An epsilon as large as the gradients"),
    Example("finetuning", "plain-tuned-turned", "forgetting", "What was learned before is lost"),
    Example("reinforcement", "plain-grpo-prompts-hard", "groups-without-advantage", "Prompts that teach nothing"),
    Example("decision", "configurations-alike", "adopt", "Two settings that are as good", "Best trial for each value"),
)


def nav() -> list[str]:
    """Return the paths of the examples' pages."""
    return [f"examples/{example.chapter}.md" for example in EXAMPLES]


def pages() -> Mapping[str, str]:
    """Return the examples' pages and whole reports by path, and the style sheet of their plots."""
    examples = {f"examples/{example.chapter}.md": _page(example) for example in EXAMPLES}
    whole = {f"examples/{e.chapter}/report.html": _reports(e.study).to_html() for e in EXAMPLES}
    return {**examples, **whole, "picture.css": _style(_reports(EXAMPLES[0].study).to_html())}


@cache
def _cases() -> Mapping[str, Case]:
    return {case.raw["studies"][0]: case for case in reversed(load_cases([RECORDED, PLAIN]))}


@cache
def _reports(study: str) -> Report:
    return analyze_study(_cases()[study].study(), rules=rules())


def _page(example: Example) -> str:
    report = _reports(example.study)
    index, finding = next((i, f) for i, f in enumerate(report.findings) if f.rule == example.rule)
    page = report.to_html()
    pictures = _in_plots(page, example.plot) if example.plot else _in_card(page, view.finding_cards(report)[index].card_id)
    return "\n\n".join(
        [
            f"# {example.chapter.capitalize()}: {example.title[0].lower()}{example.title[1:]}",
            f"We recorded these trainings with one cause switched on: {_cases()[example.study].raw['kind']}. The text below is "
            "the output of `advisor analyze` for this recording, generated with the site: "
            f"[the whole report]({example.chapter}/report.html).",
            "## The study",
            _study(report),
            "## What was found",
            _quoted(finding),
            f'<div class="picture">{pictures}</div>',
            f"The page of the rule {_link(finding.rule)} explains the check; its section of the playbook is “{finding.playbook}”.",
            "## What to do",
            sentence(str(finding.action)),
            *([f"It waits for a later study: {sentence(why)}"] if (why := report.deferral_reason(finding)) else []),
            _others(report, finding),
            "## The next study",
            _next(report),
        ]
    )


def _study(report: Report) -> str:
    shown = ("Study", "Objective", "Trials", "Best value", "Training steps")
    head, *rows = (f"| {what} | {value} |" for what, value in sheet.study_description_rows(report) if what in shown)
    searched = [
        f"| `{name}` | {domain} |" for name, _, domain, *_ in sheet.search_space_rows(report) if name in report.spec.searched
    ]
    return "\n".join([head, "|---|---|", *rows, *searched])


def _quoted(finding: Finding) -> str:
    _, sure = confidence(finding.confidence)
    words = f"**{view.SEVERITY_LABELS[finding.severity]}** ({sure.lower()}, {number(finding.confidence, 2)} of 1)"
    follows = f" {sentence(why)}" if (why := view.explanation_sentence(finding)) is not None else ""
    return f"> {words}: {sentence(str(finding.message))}{follows}"


def _others(report: Report, finding: Finding) -> str:
    also = dict.fromkeys(f.rule for f in report.findings if f.rule != finding.rule)
    return f"The same report has findings of {', '.join(map(_link, also))}." if also else "There are no other findings."


def _link(rule: str) -> str:
    return f"[`{rule}`](../rules/{rule}.md)"


def _next(report: Report) -> str:
    if not report.next_studies:
        return "No finding asks for a next study, so none was written."
    first, *later = report.next_studies
    more = f" After it come {', '.join(f'`next/{study.file}`' for study in later)}." if later else ""
    return f"`next/{first.file}`, ready for `advisor run`.{more}\n\n```yaml\n{first.yaml}```"


# --- plots of the report ----------------------------------------------------------------------------------------------------


def _in_card(page: str, card_id: str) -> str:
    """Return the plots of a finding."""
    return _figures(page, re.split(r"</?article", page.partition(f'id="{card_id}"')[2], maxsplit=1)[0])


def _in_plots(page: str, heading: str) -> str:
    """Return the plots under a heading."""
    return _figures(page, page.partition(f"<summary>{heading}")[2].partition("</details>")[0])


def _figures(page: str, part: str) -> str:
    """Return the plots in a part of the page, each on one line, with referenced elements inlined."""
    figures = re.findall(r'<figure class="plot">.*?</figure>', part, re.DOTALL)
    if not figures:
        raise LookupError("the report has no such plot")
    inlined = (re.sub(r'<use((?: class="[^"]*")?) href="#([^"]+)"/>', lambda m: _shared(page, m), figure) for figure in figures)
    return "".join(re.sub(r"\s*\n\s*", "", figure) for figure in inlined)


def _shared(page: str, use: re.Match[str]) -> str:
    """Return the element that a `<use>` refers to."""
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
    """Return the report's style sheet, nested to apply only to the plots, in the site's light and dark schemes."""
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert style is not None
    nested = style[1].replace(":root{", "&{")
    for theirs, ours in (("light", "default"), ("dark", "slate")):
        nested = nested.replace(f":root[data-theme={theirs}]", f"[data-md-color-scheme={ours}] &")
    return f".picture{{{nested}\n}}\n"
