"""Order of a report's findings."""

from __future__ import annotations

from advisor.model.change import Advise, SetRange
from advisor.planning import Deferred
from advisor.report import Report
from tests.advisor.report.studies import explained_report, make_report, make_study, make_verdicts, verdict_on


def test_findings_come_in_the_order_of_priority(report: Report) -> None:
    assert [f.goal for f in report.findings] == ["stability", "boundary", "sampling", "steps"]


def test_deferred_findings_come_last(report: Report) -> None:
    first = next(f for f in report.findings if f.severity != "critical")
    defer_stage = Deferred(rule=first.rule, message=first.message, reason="it would blur the goal")
    again = report.model_copy(update={"deferred": (defer_stage,)})
    for name in ("findings_by_cause", "heads", "findings"):
        again.__dict__.pop(name, None)  # the copy carries what was worked out for the first one
    assert again.findings[-1] == first
    assert len(again.findings) == len(report.findings)


def test_a_cause_is_followed_by_the_findings_that_it_explains() -> None:
    made = explained_report()
    assert [f.rule for f in made.findings][:2] == ["stability-spikes", "space-insensitive"]
    assert [f.rule for f in made.heads] == ["stability-spikes", "space-boundary", "step-position"]
    assert [[f.rule for f in below] for _, below in made.findings_by_cause] == [["space-insensitive"], [], []]
    assert made.deferral_reason(made.findings[1]) is not None


def test_notes_come_after_findings_that_need_action() -> None:
    study = make_study(12, dense=False)
    one, two = (v.findings[0] for v in make_verdicts(study)[2:4])
    made = make_report(study, (verdict_on(two, rule="a", goal="pipeline"), verdict_on(one, rule="b")))
    assert [f.severity for f in made.model_copy(update={"deferred": ()}).findings] == ["warning", "note"]


def test_pure_advice_comes_after_warnings_that_change_a_study() -> None:
    study = make_study(12, dense=False)
    finding = make_verdicts(study)[2].findings[0].model_copy(update={"severity": "warning", "confidence": 0.9})
    range_change = SetRange(parameter="learning_rate", low=1e-5, high=1.0, scale="log", why="w")
    changes = {"advice": ("pipeline", (Advise(text="Evaluate by steps."),)), "change": ("boundary", (range_change,))}
    verdicts = [verdict_on(finding, rule=r, goal=g, changes=c) for r, (g, c) in changes.items()]
    assert [f.rule for f in make_report(study, verdicts).heads] == ["change", "advice"]


def test_notes_that_change_a_study_come_first_and_then_the_more_certain_ones() -> None:
    study = make_study(12, dense=False)
    note = make_verdicts(study)[2].findings[0].model_copy(update={"severity": "note"})
    advice, change = ((Advise(text="Commit."),), (SetRange(parameter="dropout", low=0.1, high=0.2, scale="linear", why="w"),))
    shown = {"unsure": (0.3, advice), "sure": (0.99, advice), "range": (0.5, change)}
    verdicts = [verdict_on(note, rule=r, goal="pipeline", confidence=c, changes=d) for r, (c, d) in shown.items()]
    made = make_report(study, verdicts).model_copy(update={"deferred": ()})
    made.__dict__.pop("findings_by_cause", None)
    assert [head.rule for head, _ in made.findings_by_cause] == ["range", "sure", "unsure"]
