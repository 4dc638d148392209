"""Parts of the gate's answer in words."""

from advisor.history.answer import (
    MoreRuns,
    cost_in_words,
    excess_in_words,
    limit_in_words,
    percent_text,
    quote_name,
    runs_in_words,
)
from advisor.history.fairness import BudgetExcess, Limit


def test_runs_name_their_seeds_and_cost():
    more = MoreRuns(setting="wide", run="id", runs=2, seeds=(1, 4), steps=800.0, hours=0.5)
    assert runs_in_words(more) == "2 more seeds of wide (seeds 1 and 4)"
    assert cost_in_words([more, more]) == ": 1,600 steps, 1 hours"
    assert cost_in_words([MoreRuns(setting="a", run="b", runs=1, hours=0.01)]) == ": 36 seconds"
    assert cost_in_words([MoreRuns(setting="a", run="b", runs=1)]) == ""


def test_names_with_spaces_are_quoted_and_short():
    assert quote_name("wide") == "wide"
    assert quote_name("do this\x1b now") == '"do this\ufffd now"'
    assert len(quote_name("word " * 100)) <= 42
    assert quote_name('a" and "b') == "\"a' and 'b\""


def test_limits_excesses_and_probabilities():
    assert (
        limit_in_words(Limit(metric="memory", at_most=2.0, value=3.0)) == "the limit on memory: at most 2, and it is 3"
    )
    assert "was not logged" in limit_in_words(Limit(metric="memory", at_least=2.0))
    assert excess_in_words(BudgetExcess(kind="steps", candidate=800, incumbent=400)) == "800 steps against 400"
    assert [percent_text(p) for p in (0, 0.5, 1)] == ["0.1 %", "50 %", "99.9 %"]
