"""Parts of the gate's answer in words."""

from advisor.history.answer import (
    MoreRuns,
    describe_budget_excess,
    describe_further_runs,
    describe_runs_cost,
    describe_violated_limit,
    percent_text,
    quote_name,
)
from advisor.history.fairness import BudgetExcess, Limit


def test_runs_name_their_seeds_and_cost():
    more = MoreRuns(setting="wide", run="id", runs=2, seeds=(1, 4), steps=800.0, hours=0.5)
    assert describe_further_runs(more) == "2 more seeds of wide (seeds 1 and 4)"
    assert describe_runs_cost([more, more]) == ": 1,600 steps, 1 hours"
    assert describe_runs_cost([MoreRuns(setting="a", run="b", runs=1, hours=0.01)]) == ": 36 seconds"
    assert describe_runs_cost([MoreRuns(setting="a", run="b", runs=1)]) == ""


def test_names_with_spaces_are_quoted_and_short():
    assert quote_name("wide") == "wide"
    assert quote_name("do this\x1b now") == '"do this\ufffd now"'
    assert len(quote_name("word " * 100)) <= 42
    assert quote_name('a" and "b') == "\"a' and 'b\""


def test_limits_excesses_and_probabilities():
    limit = Limit(metric="memory", at_most=2.0, value=3.0)
    assert describe_violated_limit(limit) == "the limit on memory: at most 2; the value is 3"
    assert "was not logged" in describe_violated_limit(Limit(metric="memory", at_least=2.0))
    assert describe_budget_excess(BudgetExcess(kind="steps", candidate=800, incumbent=400)) == "800 steps against 400"
    assert [percent_text(p) for p in (0, 0.5, 1)] == ["0.1 %", "50 %", "99.9 %"]
