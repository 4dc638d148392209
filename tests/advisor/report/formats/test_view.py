"""Contents of the page."""

from __future__ import annotations

from dataclasses import replace

from planning_studies import found

from advisor.model.change import Advise, SetRange
from advisor.model.finding import Explanation
from advisor.model.reading import Decision
from advisor.report.formats import view
from advisor.report.text import headline
from tests.advisor.report.studies import make_report, make_study


def test_the_reading_of_a_study_is_a_few_lines() -> None:
    many = tuple(Decision(topic="parameters", text=f"Decision {i}", overrule="--ignore x") for i in range(9))
    report = make_report(replace(make_study(trials=5), decisions=many))
    assert len(view.reading_decisions(report)) == 10  # the direction is inferred
    lines = view.reading_decision_lines(report, 3)
    assert lines[0].startswith("Direction: minimize, inferred from the metric's name.")
    assert lines[1] == "Decision 0. Overrule: --ignore x"
    assert lines[3:] == ("And 7 more decisions in the report.",)


def test_trials_of_different_lengths_are_a_line_of_the_next_study() -> None:
    report = make_report(make_study(12))
    (first, *_) = view.planned_studies(report)
    assert "max_train_steps" not in {row.name for row in first.diff}
    rows = list(report.figures.trials)
    complete = next(i for i, t in enumerate(rows) if t.status == "complete")
    longest = max(t.last_step for t in rows if t.status == "complete" and t.last_step)
    rows[complete] = rows[complete].model_copy(update={"last_step": longest // 2})
    varied = report.model_copy(update={"figures": report.figures.model_copy(update={"trials": tuple(rows)})})
    (line,) = (row for row in view.planned_studies(varied)[0].diff if row.name == "max_train_steps")
    length = report.next_studies[0].spec.max_train_steps
    assert (line.before, line.after) == (f"{longest // 2:,} to {longest:,}", f"{length:,}")


def test_what_the_headline_says_is_the_first_thing_to_do_and_advice_follows_the_changes() -> None:
    study = make_study(12, dense=False)
    cut = SetRange(parameter="learning_rate", low=1e-4, high=0.01, scale="log", why="w")
    less = SetRange(parameter="weight_decay", low=1e-6, high=1e-3, scale="log", why="w")
    advice = found("bad-corner", "infeasible", Advise(text="Draw fewer trials there."), action="Draw fewer trials there.")
    because = Explanation(rule="bad-corner", because="It is the same range.", waits=False)
    rate = found("rate", "sampling", cut, subject="learning_rate", action="Narrow the rate.", explained_by=because)
    decay = found("decay", "sampling", less, subject="weight_decay", action="Narrow the decay.")
    report = make_report(study, [advice, rate, decay])
    to_do = view.cards_to_act_on(view.finding_cards(report), headline.leading_finding(report))
    assert [str(c.finding.action) for c in to_do] == ["Narrow the rate.", "Narrow the decay.", "Draw fewer trials there."]
    assert headline.leading_finding(report) is to_do[0].finding


def test_a_next_study_that_changes_nothing_has_no_rows() -> None:
    report = make_report(make_study(trials=5))
    same = report.next_studies[0].model_copy(update={"spec": view.completed_spec(report)})
    unchanged = report.model_copy(update={"next_studies": (same,)})
    assert not view.planned_studies(unchanged)[0].diff
    assert view.explained_study_changes(unchanged) == ()


def test_a_range_that_a_model_narrowed_further_states_the_reason() -> None:
    """The finding counts good trials, some of which lie outside the narrower range."""
    cut = SetRange(parameter="learning_rate", low=1e-4, high=0.01, scale="log", why="The good trials lie between 1e-4 and 0.01")
    rate = found("rate", "sampling", cut, subject="learning_rate", action="Narrow the rate.")
    report = make_report(make_study(12, dense=False), [rate])
    step, *others = report.next_studies
    why = (
        "The good trials lie between 1e-4 and 0.01. The best value lies here with a probability of about 90 %, by a model of 12"
    )
    narrower = step.spec.parameters["learning_rate"].model_copy(update={"low": 1e-3, "high": 5e-3, "why": why})
    spec = step.spec.with_parameter("learning_rate", narrower)
    changed = report.model_copy(update={"next_studies": (step.model_copy(update={"spec": spec}), *others)})
    (line,) = view.action_lines(changed, rate.findings[0])
    assert str(line).startswith("Search learning_rate in 0.001 … 0.005")
    assert str(line).endswith(": the best value lies here with a probability of about 90 %, by a model of 12.")
