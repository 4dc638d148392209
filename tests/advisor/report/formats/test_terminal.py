"""The report in a terminal and in a pipe."""

from __future__ import annotations

import io
import re
import unicodedata

import pytest
from rich.console import Console

from advisor.model.change import SetField
from advisor.model.finding import Explanation
from advisor.model.message import say
from advisor.report import Report
from advisor.report.formats.terminal import print_report
from tests.advisor.report.studies import explained_report, verdict_on
from tests.templates.hostile import hostile_report


def printed(report: Report, *, terminal: bool = False, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    print_report(report, Console(file=file, force_terminal=terminal, width=80))
    file.flush()
    return raw.getvalue().decode(encoding)


def test_the_terminal_shows_the_main_points(report: Report) -> None:
    text = printed(report)
    goal, reason, *_ = text.splitlines()
    assert goal.startswith("Tune adamw in a separate study: learning_rate, weight_decay, ")
    assert reason == f"{report.findings[0].message}."
    for finding in report.findings:
        assert str(finding.message) in text
        assert str(finding.action) in text
    assert "2 checks passed, 1 could not run, 1 broke (my-own-rule)." in text
    assert "→ Log the duration of each step and the time it waits for data: then 1 check can run." in text
    assert "advisor run advisor-report/next/1-tune-adamw-in-a-separate-study.yaml -- python train.py" in text
    assert "\n  next/2-tune-nadam-in-a-separate-study.yaml\n" in text
    assert "inferred from the metric's name. Overrule: --direction minimize|maximize" in text


def test_the_terminal_names_three_things_to_log_at_most(report: Report) -> None:
    text = printed(report.model_copy(update={"unlocks": report.unlocks * 5}))
    assert text.count("then 1 check can run") == 3


def test_a_pipe_gets_plain_text(report: Report) -> None:
    assert "\x1b" not in printed(report)
    assert "\x1b[" in printed(report, terminal=True)


def test_a_terminal_without_unicode_gets_ascii(report: Report) -> None:
    assert "[!!] Fix first" in printed(report, encoding="ascii")


@pytest.mark.parametrize("terminal", [False, True])
def test_no_name_controls_the_terminal(terminal: bool) -> None:
    text = printed(hostile_report(), terminal=terminal)
    own = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert not [c for c in own if unicodedata.category(c) == "Cc" and c != "\n"]
    if not terminal:
        assert "\x1b" not in text
        assert "[bold red]markup[/bold red]" in text
        assert ":smile:" in text


def test_an_explained_finding_is_below_its_cause() -> None:
    made = explained_report()
    lines = [line.strip() for line in printed(made).splitlines()]
    at = lines.index("Follows from stability-spikes: spikes drown what it does.")
    assert "warmup_steps explains 0 to 3 %" in lines[at - 1]
    assert lines[at - 2].startswith("→ Clip the gradient norm")
    assert lines[at - 1].endswith("  space-insensitive")  # it waits, so its action is not shown
    assert "Follows from stability-spikes: spikes drown what it does." in made.to_markdown()


def test_an_explained_finding_has_its_action_if_the_next_study_makes_it(report: Report) -> None:
    longer = SetField(field="trials", value=64, why="w")
    spec = longer.apply(report.next_studies[0].spec)
    cause, effect = report.findings[0], report.findings[-1]
    because = Explanation(rule=cause.rule, subject=cause.subject, because="Too few trials.", waits=False)
    update = {"explained_by": because, "changes": (longer,), "action": say("Run 64 trials"), "rule": "space-few"}
    verdicts = (verdict_on(cause), verdict_on(effect, **update))
    first = report.next_studies[0].model_copy(update={"spec": spec})
    made = report.model_copy(update={"verdicts": verdicts, "next_studies": (first,), "deferred": ()})
    for name in ("findings_by_cause", "heads", "findings"):
        made.__dict__.pop(name, None)  # the copy carries the values of the first report
    lines = [line.strip() for line in printed(made).splitlines()]
    assert lines.index("→ Run 64 trials.") == lines.index("Follows from stability-spikes: too few trials.") - 1
