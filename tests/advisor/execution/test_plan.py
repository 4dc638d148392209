from advisor.execution import Summary
from advisor.execution.ledger.record import JobOutcome
from advisor.execution.plan import EndedRunLines


def test_a_line_for_each_trial_that_ended_with_a_result():
    summary, lines = Summary(5, {(0, 0): JobOutcome("complete", 0.5)}), EndedRunLines("val/error", 0)
    assert lines.new_lines(summary) == []
    summary.outcomes[1, 0] = JobOutcome("complete", 0.123456)
    assert lines.new_lines(summary) == ["2 of 5: trial-1, val/error 0.123"]
    summary.outcomes[2, 0] = JobOutcome("infeasible", None, "it crashed")
    summary.outcomes[3, 0] = JobOutcome("complete", 0.75)
    assert lines.new_lines(summary) == ["4 of 5: trial-3, val/error 0.75 (best 0.123, trial-1)"]
    assert lines.new_lines(summary) == []


def test_the_first_of_equal_results_is_the_best():
    outcomes = {(i, 0): JobOutcome("complete", value) for i, value in enumerate((0.5, 0.9, 0.9))}
    summary = Summary(3, outcomes, maximize=True)
    assert summary.leaders == [(1, 0), (2, 0)]
    assert summary.best == ((1, 0), 0.9)
    lines = EndedRunLines("val/acc", 0)
    lines.new_lines(Summary(3, {}))
    assert lines.new_lines(summary)[1:] == ["2 of 3: trial-1, val/acc 0.9", "3 of 3: trial-2, val/acc 0.9"]
