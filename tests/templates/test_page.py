"""The page as text: its contents, and what must not be in it."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from html.parser import HTMLParser

import jinja2
import pytest
from markupsafe import Markup

from advisor.model.change import SetRange
from advisor.model.finding import Explanation
from advisor.model.words import capitalise
from advisor.report import Report
from advisor.report.formats import view
from advisor.report.formats.markdown import escape_markdown
from advisor.report.formats.sarif import render_sarif
from advisor.report.text.run_command import next_study_command
from advisor.report.text.study_diff import diff_studies
from advisor.system import resources
from tests.advisor.report.studies import default_spec, make_report, make_study, make_verdicts, of_one_optimizer, verdict_on

pytestmark = pytest.mark.xdist_group("pages")  # they share reports
VOID = {"meta", "wbr", "br", "input", "link", "hr", "img"}
OPTIONAL = {"td": ("td", "th"), "th": ("td", "th"), "tr": ("td", "th", "tr"), "li": ("li",)}
"""What an element ends by its start, where end tags are optional."""
ENDED_BY = {"tbody": ("td", "th", "tr"), "thead": ("td", "th", "tr"), "tr": ("td", "th"), "ul": ("li",), "ol": ("li",)}
"""What an element ends by its end."""


class Reader(HTMLParser):
    """Reads a page strictly: every element that opens must close, in order, unless its end tag is optional."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.stack: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.imply(OPTIONAL.get(tag, ()))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def imply(self, tags: tuple[str, ...]) -> None:
        while self.stack and self.stack[-1] in tags:
            self.stack.pop()

    def handle_endtag(self, tag: str) -> None:
        self.imply(ENDED_BY.get(tag, ()))
        assert self.stack, f"</{tag}> closes nothing"
        assert self.stack.pop() == tag, f"</{tag}> closes another element, line {self.getpos()[0]}"

    def handle_data(self, data: str) -> None:
        tag = self.stack[-1] if self.stack else ""
        self.text[tag] = self.text.get(tag, "") + data


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.stack == []
    return reader


@pytest.fixture(scope="module")
def page(report: Report) -> str:
    return report.to_html()


@pytest.mark.parametrize("kind", ["page", "hostile_page"])
def test_the_page_is_well_formed_and_every_id_is_there_once(kind: str, request: pytest.FixtureRequest) -> None:
    reader = read(request.getfixturevalue(kind))
    ids = [a["id"] for _, a in reader.elements if "id" in a]
    assert len(ids) == len(set(ids))
    for _, attributes in reader.elements:
        for target in (attributes.get("aria-labelledby") or "").split():
            assert target in ids
        href = attributes.get("href")
        assert href is None or (href.startswith("#") and href[1:] in ids)


@pytest.mark.parametrize("kind", ["page", "hostile_page"])
def test_nothing_on_the_page_could_run_or_load(kind: str, request: pytest.FixtureRequest) -> None:
    reader = read(request.getfixturevalue(kind))
    for tag, attributes in reader.elements:
        assert tag not in {"iframe", "img", "object", "embed", "base", "link", "foreignobject", "animate", "form"}
        assert not [a for a in attributes if a.startswith("on") or a in ("style", "src", "srcdoc", "xlink:href")]
    assert sum(tag == "script" for tag, _ in reader.elements) == 2
    assert sum(tag == "style" for tag, _ in reader.elements) == 1


def test_the_policy_allows_the_one_style_and_the_one_script(page: str) -> None:
    policy = next(a["content"] or "" for t, a in read(page).elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    for text in (style, script):
        assert f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" in policy


def test_the_data_block_is_json_and_holds_no_tag(hostile_page: str) -> None:
    (block,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', hostile_page, re.DOTALL)
    assert not set("<>&\u2028\u2029") & set(block)
    # All of its trials are in the table, whose words the script shows.
    assert json.loads(block)["trials"] == {}


def test_names_have_no_control_characters_and_long_ones_have_a_tooltip(hostile_page: str) -> None:
    assert not set("\x00\x07\x1b\u202a\u202e\u2066") & set(hostile_page)
    assert "\ufffd" in hostile_page
    assert "a" * 480 in {a.get("title") for t, a in read(hostile_page).elements if t == "bdi"}


def test_everything_is_there_in_order(page: str, report: Report) -> None:
    order = ["<h1>", 'class="figures"', 'class="tally"', 'id="next"', 'id="findings"', 'id="checks"', 'id="plots"']
    places = [page.index(part) for part in [*order, 'id="trials"', 'id="sheet"', "<footer>"]]
    assert places == sorted(places)
    text = re.sub(r"<[^>]+>", "", page)
    for finding in report.findings:
        assert str(finding.message) in text
        assert str(finding.action) in text
        assert finding.playbook in text
        assert f"advisor explain {finding.rule}" in text
    assert "A better value may lie just outside of the range." in text
    assert "Excess over a log-normal tail" in text
    assert "Keep the checkpoints of the three best steps." in text
    assert "no trial logged how long it waits for data" in text
    assert "ZeroDivisionError: division by zero" in text
    assert "inferred from the metric" in text
    assert report.provenance.data in text
    for study in report.next_studies:
        assert f"next/{study.file}" in text
        assert jinja2.filters.escape(study.yaml) in page


def test_the_counts_under_the_headline_add_up() -> None:
    """All findings count by severity; those that are not in the list of things to do are for later."""
    study = make_study(40)
    spikes, boundary = (next(iter(v.findings)) for v in make_verdicts(study)[:2])
    cause = Explanation(rule=spikes.rule, subject=spikes.subject, side=spikes.side, because="So it is.")
    follower = boundary.model_copy(update={"explained_by": cause})
    verdicts = make_verdicts(study)
    shown = make_report(study, (verdicts[0], verdict_on(follower), *verdicts[2:]))
    text = shown.to_html()
    tally = dict(re.findall(r"#i-([a-z]+)\"/></svg> <b>(\d+)</b>", text.partition('class="tally"')[2].partition("</ul>")[0]))
    to_do = text.partition('<ol class="todo">')[2].partition("</ol>")[0]
    for kind in ("critical", "warning", "note"):
        assert int(tally[kind]) == sum(f.severity == kind for f in shown.findings)
    assert int(tally["follows"]) == len(shown.findings) - to_do.count("<li>") > 0
    assert sum(int(tally[k]) for k in ("passed", "unknown", "broken")) + 4 == len(shown.verdicts)


def test_missing_plots_are_explained() -> None:
    bare = make_report(make_study(3, dense=False, spec=default_spec().model_copy(update={"parameters": {}})), ())
    text = bare.to_html()
    assert "No hyperparameter is varied" in text
    assert "No gradient norm is shown: none was logged" in text


@pytest.mark.parametrize("trials", [0, 1, 2])
def test_tiny_studies_have_a_page(trials: int) -> None:
    read(make_report(make_study(trials), ()).to_html())


def test_the_page_stays_small(large_page: str) -> None:
    assert len(make_report(make_study(200)).to_html().encode()) <= 300_000
    assert len(large_page.encode()) <= 3_000_000
    assert len(read(large_page).elements) < 15_000


def test_every_class_of_the_pictures_has_a_style(page: str) -> None:
    css = (resources.resource_folder("templates") / "report.css").read_text("utf-8")
    styled = set(re.findall(r"\.([a-z][\w-]*)", css))
    used = {
        c for t, a in read(page).elements if t in ("path", "rect", "circle", "text") for c in (a.get("class") or "").split()
    }
    assert used - styled <= {"far"} | {"d0"}


def test_elements_drawn_by_reference_have_simple_selectors() -> None:
    """Copies that `use` draws have none of the ancestors that a selector could ask for."""
    folder = resources.resource_folder("templates")
    css = re.sub(r"/\*.*?\*/", "", (folder / "report.css").read_text("utf-8"), flags=re.DOTALL)
    shared = set(re.findall(r'class="([^"{]+)"', (folder / "_symbols.html.j2").read_text("utf-8"))) - {"sr"}
    names = {c for classes in shared for c in classes.split()} | {"axis", "gridline", "lane", "outside"}
    for selector in (s.strip() for rule in re.findall(r"([^{}]+)\{", css) for s in rule.split(",")):
        last = selector.split()[-1] if selector else ""
        if last == "text" or set(re.findall(r"\.([\w-]+)", last)) & names:
            assert " " not in selector, selector


def luminance(colour: str) -> float:
    short = colour.lstrip("#")
    full = short if len(short) == 6 else "".join(c * 2 for c in short)
    parts = [int(full[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_colours_have_enough_contrast(theme: int) -> None:
    css = (resources.resource_folder("templates") / "report.css").read_text("utf-8")
    pairs = re.findall(r"--([\w]+):light-dark\((#\w+),(#\w+)\)", css)
    colour = {name: (light, dark)[theme] for name, light, dark in pairs}
    for name in ("ink", "muted", "link", "critical", "warning", "note", "passed"):
        for under in ("bg", "card", "soft"):
            assert contrast(colour[name], colour[under]) >= 4.5, (name, under)
    for name in ("s0", "s1", "s2", "s3", "s4"):
        assert contrast(colour[name], colour["card"]) >= 3, name
    for under in ("del", "ins"):
        assert contrast(colour["ink"], colour[under]) >= 7


def test_an_explained_finding_is_in_the_card_of_its_cause_and_not_in_the_headline() -> None:
    study = of_one_optimizer(40)
    cause, effect = (v.findings[0] for v in make_verdicts(study)[:2])
    explained_by = Explanation(rule=cause.rule, subject=cause.subject, because="It draws the line.")
    follower = effect.model_copy(update={"explained_by": explained_by})
    page = make_report(study, [verdict_on(cause), verdict_on(follower)]).to_html()
    first, second = page.index('id="finding-1"'), page.index('id="finding-2"')
    assert first < page.index("This explains 1 more finding") < second < page.index("It draws the line.")
    assert page[first:second].count("<article") == 1
    head = "Search <code>grad_clip_norm</code>: 0.8 to 3.2, with a new range of <code>learning_rate</code>."
    assert f'<h1>{head}</h1>\n<p class="lead why">{cause.message}.</p>' in page


def test_changes_of_two_findings_are_merged_and_to_be_done_once() -> None:
    study = make_study(40)
    widened, narrowed = (
        SetRange(parameter="weight_decay", low=low, high=high, scale="log", why="the good trials lie there")
        for low, high in ((1e-8, 0.1), (1e-6, 1e-3))
    )
    cause = make_verdicts(study)[1].findings[0].model_copy(update={"changes": (widened,)})
    explained_by = Explanation(
        rule=cause.rule, subject=cause.subject, side=cause.side, because="It is where they crowd.", waits=False
    )
    effect = cause.model_copy(
        update={"rule": "space-shrink", "action": "Narrow it.", "explained_by": explained_by, "changes": (narrowed,)}
    )
    report = make_report(study, [verdict_on(cause), verdict_on(effect)])
    (after,) = (row.after for row in diff_studies(report.spec, report.next[0]) if row.name == "weight_decay")
    assert after == "1e-8 … 0.001, log"
    made = view.finding_cards(report)
    assert [c.finding.action for c in view.cards_to_act_on(made, cause)] == [cause.action]
    merged = f"The next study has weight_decay {after}."
    to_do = report.to_html().partition('<ol class="todo">')[2].partition("</ol>")[0]
    assert after in Markup(to_do).striptags()  # as in the headline and the study
    assert str(cause.action) not in Markup(to_do).striptags()  # not as one finding alone proposes
    for card in made:
        assert tuple(map(str, card.merged_changes)) == (merged,) * (card.diff[0].after != after)
    assert any(card.merged_changes for card in made)
    page = report.to_html()
    assert merged in Markup(page).striptags()
    assert f"Search weight_decay in {after}." in render_sarif(report)
    assert escape_markdown(merged) in report.to_markdown()
    # The text next to the bars is text of the page, so it stays legible when the bars are narrow.
    (row,) = re.findall(r"<li><b>weight_decay</b>(.*?)</li>", page, re.DOTALL)
    assert f"<span>1e-6 … 0.1 → {after.partition(',')[0]}</span>" in row
    assert "<text" not in row
    assert len(re.findall(r"M[\d.]+ 0v21|(?<=v21)M[\d.]+ 0v21", row)) == 5


def test_every_change_of_the_first_study_has_its_reason() -> None:
    study = of_one_optimizer(40, dense=False)
    report = make_report(study, make_verdicts(study))
    changes = Markup(report.to_html().partition("<h3>What changes</h3>")[2].partition("Study file:")[0]).striptags()
    rows = view.explained_study_changes(report)
    assert {row.name for row in rows} > {"learning_rate"}
    for i, row in enumerate(rows):
        # Rows in succession with the same reason share it.
        why = next(r.why for r in rows[i:] if r.why)
        assert capitalise(why.rstrip(".")) in changes, row.name


def test_a_finding_of_thousands_of_trials_does_not_list_them_all() -> None:
    study = make_study(2000, dense=False)
    shown = make_verdicts(study)[1].findings[0].model_copy(update={"trials": tuple(t.id for t in study.trials)})
    report = make_report(study, [verdict_on(shown)])
    page = report.to_html()
    body = page[page.index('id="trials"') : page.index('id="sheet"')]
    assert 500 <= body.count("<tr data-t=") <= 510
    (block,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert len(json.loads(block)["trials"]) + body.count("<tr data-t=") == 2000


def test_the_command_breaks_only_between_words_and_copies_as_it_is(report: Report) -> None:
    shown = report.to_html().partition('<pre id="run-first"')[2].partition(">")[2].partition("</pre>")[0]
    assert html.unescape(re.sub(r"</?span>", "", shown)) == next_study_command(report)
    assert all(" " not in word for word in re.findall(r"<span>(.*?)</span>", shown))
