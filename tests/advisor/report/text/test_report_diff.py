"""What a later report says that an earlier one did not."""

from __future__ import annotations

from advisor.report import Report
from advisor.report.text.report_diff import report_diff
from tests.advisor.report.studies import make_report, make_study, make_verdicts

STUDY = make_study(40, dense=False)
VERDICTS = make_verdicts(STUDY)


def part(trials: int, running: int = 0) -> Report:
    """The study as it was when it had so many trials, the last ones of them running."""
    shown = make_study(trials, dense=False, statuses=dict.fromkeys(range(trials - running, trials), "running"))
    return make_report(shown, ())


def test_nothing_changes_between_a_report_and_itself() -> None:
    report = make_report(STUDY, VERDICTS)
    assert report_diff(report, report) == ()


def test_new_and_ended_trials_are_counted() -> None:
    before, after = part(10, 2), part(12, 1)
    said = report_diff(before, after)
    assert said[0] == "2 new trials: 12 by now, 1 of them running."
    assert said[1].startswith("2 trials ended: trial-0008 (")


def test_a_better_value_is_told_with_the_one_before() -> None:
    before, after = part(10), part(40)
    best = [line for line in report_diff(before, after) if line.startswith("Best")]
    costs = STUDY.costs[STUDY.feasible]
    assert best == [
        f"Best validation/error: {costs.min():.4f} (trial-{int(STUDY.ranked()[0].index):04d}), before {part(10).best.value:.4f}."
    ]


def test_the_first_result_is_told() -> None:
    assert any(line.startswith("The first result: validation/error 0.") for line in report_diff(part(2, 2), part(3, 1)))


def test_findings_that_come_and_go_are_told_whatever_their_numbers() -> None:
    spikes, boundary, *rest = VERDICTS
    reworded = boundary.findings[0].model_copy(update={"message": "Five of the five best trials lie there"})
    quiet = spikes.model_copy(update={"status": "quiet", "findings": ()})
    before = make_report(STUDY, (spikes, boundary))
    after = make_report(STUDY, (quiet, boundary.model_copy(update={"findings": (reworded,)}), rest[0]))
    told = [line for line in report_diff(before, after) if "found" in line or "finding" in line]
    assert told == [
        "New finding: The best trials are still improving at step 10,000: 0.004 more is expected by step 15,000.",
        "No longer found: Four of the ten best trials have gradient norms above 20, over 15 times their median of 1.1.",
    ]


def test_checks_that_can_tell_by_now_and_studies_written_anew_are_told() -> None:
    lacking = next(v for v in VERDICTS if v.status == "not-assessed")
    before = make_report(STUDY, (lacking,))
    after = make_report(STUDY, (lacking.model_copy(update={"status": "quiet"}), VERDICTS[1]))
    said = report_diff(before, after)
    assert f"1 check can tell by now: {lacking.rule}." in said
    assert f"Written anew: next/{after.next_studies[0].file}." in said
    assert f"No longer there: next/{after.next_studies[0].file}." in report_diff(after, before)
