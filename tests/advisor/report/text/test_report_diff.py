"""Differences between two reports on the same study."""

from __future__ import annotations

from advisor.report import Report
from advisor.report.text.report_diff import describe_report_changes
from tests.advisor.report.studies import make_report, make_study, make_verdicts, of_one_optimizer

STUDY = make_study(40, dense=False)
VERDICTS = make_verdicts(STUDY)


def part(trials: int, running: int = 0) -> Report:
    """Return the report on the first `trials` trials; the last `running` trials are running."""
    shown = make_study(trials, dense=False, statuses=dict.fromkeys(range(trials - running, trials), "running"))
    return make_report(shown, ())


def test_nothing_changes_between_a_report_and_itself() -> None:
    report = make_report(STUDY, VERDICTS)
    assert describe_report_changes(report, report) == ()


def test_new_and_ended_trials_are_counted() -> None:
    before, after = part(10, 2), part(12, 1)
    lines = describe_report_changes(before, after)
    assert lines[0] == "2 new trials (12 in total, 1 running)."
    assert lines[1].startswith("2 trials ended: trial-0008 (")


def test_a_better_value_is_compared_to_the_previous_one() -> None:
    before, after = part(10), part(40)
    best = [line for line in describe_report_changes(before, after) if line.startswith("Best")]
    costs = STUDY.costs[STUDY.feasible]
    now = f"{costs.min():.4f} (trial-{int(STUDY.ranked()[0].index):04d})"
    assert best == [f"Best validation/error: {now}, previously {part(10).best.value:.4f}."]


def test_the_first_result_is_named() -> None:
    assert any(line.startswith("First result: validation/error 0.") for line in describe_report_changes(part(2, 2), part(3, 1)))


def test_new_and_resolved_findings_are_listed_whatever_their_numbers() -> None:
    spikes, boundary, *rest = VERDICTS
    reworded = boundary.findings[0].model_copy(update={"message": "Five of the five best trials lie there"})
    quiet = spikes.model_copy(update={"status": "quiet", "findings": ()})
    before = make_report(STUDY, (spikes, boundary))
    after = make_report(STUDY, (quiet, boundary.model_copy(update={"findings": (reworded,)}), rest[0]))
    differences = [line for line in describe_report_changes(before, after) if line.startswith(("New finding", "Resolved"))]
    assert differences == [
        "New finding: The best trials are still improving at step 10,000: 0.004 more is expected by step 15,000.",
        "Resolved: Four of the ten best trials have gradient norms above 20, over 15 times their median of 1.1.",
    ]


def test_newly_assessed_checks_and_changed_studies_are_listed() -> None:
    lacking = next(v for v in VERDICTS if v.status == "not-assessed")
    study = of_one_optimizer(40, dense=False)
    before = make_report(study, (lacking,))
    after = make_report(study, (lacking.model_copy(update={"status": "quiet"}), VERDICTS[1]))
    lines = describe_report_changes(before, after)
    assert f"1 more check has enough data: {lacking.rule}." in lines
    assert "Updated: next/1-search-lower-weight-decay.yaml." in lines
    assert f"Removed: next/{before.next_studies[0].file}." in lines
    assert f"Removed: next/{after.next_studies[0].file}." in describe_report_changes(after, before)
