"""The headline."""

from __future__ import annotations

import html

import numpy as np
import pytest
from planning_studies import RULES, found
from studies import make_study as built

from advisor.analysis import analyze_study
from advisor.model.change import RunPlan, SetRange
from advisor.model.finding import Explanation, Verdict
from advisor.model.message import say
from advisor.model.spec import Parameter
from advisor.model.study import TrialStatus
from advisor.planning import Deferred
from advisor.report.formats.view import cards_to_act_on, finding_cards
from advisor.report.model import ReportData
from advisor.report.text.headline import headline, headline_goal_and_reason, leading_finding, names_unrequested_study
from tests.advisor.report.studies import fired, make_report, make_study, of_one_optimizer, verdict_on


def unplanned(report: ReportData) -> ReportData:
    """Return the report without its next studies."""
    return report.model_copy(update={"next_studies": ()})


def set_range(name: str, low: float, high: float) -> SetRange:
    return SetRange(parameter=name, low=low, high=high, scale="log", why="w")


WIDER = (set_range("learning_rate", 1e-7, 50.0),)
QUIET = Verdict(rule="q", status="quiet")
UNKNOWN = Verdict(rule="u", status="not-assessed", reason="no data")


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([], "This study has no trials yet."),
        (["running"], "No trial has ended yet."),
        (["no_data"], "The only trial did not log the objective."),
        (["no_data"] * 3, "None of the 3 trials logged the objective."),
        (["infeasible"] * 3, "No trial produced a usable result."),
        (["complete"], "Only one trial has a result, which is not enough to judge a search."),
    ],
)
def test_without_findings_it_follows_from_the_trials(statuses: list[TrialStatus], expected: str) -> None:
    study = make_study(len(statuses), statuses=dict(enumerate(statuses)), dense=False)
    assert headline(unplanned(make_report(study, ()))) == expected


@pytest.mark.parametrize(("params", "missing"), [({}, "hyperparameter"), ({"depth": 3}, "learning rate")])
def test_repeats_without_a_learning_rate_say_that_it_is_missing(params: dict[str, int], missing: str) -> None:
    report = analyze_study(built([params], {"val/loss": [[2.0, 1.0]]}), rules=())
    assert f"No {missing} was logged, so a study can only measure the variation between seeds." in str(headline(report))


def test_equally_good_settings_are_taken_before_they_are_repeated() -> None:
    rng, t = np.random.default_rng(0), np.linspace(0, 1, 60)
    curves = [0.96 - 0.4 * np.exp(-8 * t) + 0.002 * rng.standard_normal(60) for _ in range(8)]
    study = built([{"x": float(i)} for i in range(8)], {"val_acc": curves}, objective="val_acc", direction="maximize")
    goal, reason = headline_goal_and_reason(
        analyze_study(study, rules=[r for r in RULES if r.rule_id() == "curve-step-variance"])
    )
    assert str(goal).startswith("Take any of the 5 best settings")
    assert "Then run the next study, “Repeat the best setting”." in str(reason)


@pytest.mark.parametrize(
    ("verdicts", "rest"),
    [
        ([QUIET, UNKNOWN], "No problem found in one check; 1 check could not run."),
        ([fired("note", "steps")], "Nothing urgent found in one check. Consider: Search higher lr."),
    ],
)
def test_few_results_are_no_clean_bill(verdicts: list[Verdict], rest: str) -> None:
    study = make_study(3, dense=False, statuses=dict.fromkeys(range(3), "complete"))
    text = str(headline(unplanned(make_report(study, verdicts))))
    assert text == f"Only three trials have a comparable result, too few to judge the search space. {rest}"


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([], "No check ran."),
        ([UNKNOWN], "No check had enough data."),
        ([QUIET], "No problem found in one check."),
        ([QUIET, QUIET, UNKNOWN], "No problem found in two checks; 1 check could not run."),
        ([fired("note", "steps")], "Search higher lr. The best trials lie at the top of lr."),
        ([fired("warning", "steps")], "Search higher lr. The best trials lie at the top of lr."),
        (
            [fired("warning", "steps"), fired("critical", "boundary", "wd"), fired("note", "sampling")],
            "Search higher wd. The best trials lie at the top of wd.",
        ),
        (
            [*(fired("critical", "boundary", n) for n in ("lr", "wd", "b")), fired("warning", "steps")],
            "Search higher b. The best trials lie at the top of b.",
        ),
    ],
)
def test_with_results_it_is_the_first_action(verdicts: list[Verdict], expected: str) -> None:
    assert headline(unplanned(make_report(make_study(12, dense=False), verdicts))) == expected


def test_without_a_result_it_is_what_to_fix() -> None:
    study = make_study(3, dense=False, statuses=dict.fromkeys(range(3), "infeasible"))
    report = make_report(study, [fired("critical", "stability")])
    assert headline(report) == "No trial produced a usable result. Search higher lr."


def test_without_a_result_a_study_of_lower_rates_is_what_to_do() -> None:
    curves = [[50.0, 90.0 + i, float("nan")] for i in range(8)]
    rates = [{"lr": float(r)} for r in np.geomspace(0.04, 1.0, 8)]
    report = analyze_study(built(rates, {"val/loss": curves}, status=["diverged"] * 8), rules=RULES)
    assert str(headline(report)).startswith("Search lower lr: 4e-4 to 0.04.")


@pytest.mark.parametrize("name", ["<lr>", "<lr> of all", "lr) (b"])
def test_names_are_marked_up_in_the_headline(name: str) -> None:
    made = fired("warning", "boundary", name, changes=(set_range(name, 1e-4, 1.0),))
    page = make_report(of_one_optimizer(12, dense=False), [made]).to_html()
    assert f'<h1>Add <code>{html.escape(name)}</code>: <span class="nb">1e-4</span> to 1' in page


def test_it_is_the_goal_of_the_first_study_with_the_reason_for_it() -> None:
    first = fired("warning", "boundary", "learning_rate", changes=WIDER)
    report = make_report(make_study(12, dense=False), [first, fired("critical", "pipeline", "data")])
    goal = report.next_studies[0].spec.goal
    assert str(headline(report)) == f"{goal}. The best trials lie at the top of learning_rate."


def test_a_study_that_follows_a_note_is_optional() -> None:
    likely, note = (fired("note", "boundary", "learning_rate", changes=WIDER, confidence=c) for c in (0.8, 0.6))
    assert "Optional" not in str(headline(make_report(make_study(12, dense=False), [likely])))
    report = make_report(make_study(12, dense=False), [note])
    reason = "Optional: nothing is urgent. The best trials lie at the top of learning_rate."
    assert str(headline(report)).endswith(reason)
    other = fired("warning", "boundary", "weight_decay", changes=(set_range("weight_decay", 1e-9, 1.0),))
    assert "Optional" not in str(headline(make_report(make_study(12, dense=False), [note, other])))


def test_a_fix_without_a_change_of_the_study_comes_before_it() -> None:
    report = make_report(make_study(12, dense=False), [fired("warning", "pipeline", "data")])
    goal = report.next_studies[0].spec.goal
    then = f"Then run the next study, “{goal.partition(':')[0]}”."
    assert str(headline(report)) == f"Search higher data. The best trials lie at the top of data. {then}"


def test_a_fix_before_the_end_of_the_search_leaves_the_reason_for_the_end() -> None:
    rng, rates = np.random.default_rng(1), np.geomspace(3e-3, 5e-2, 5)
    curves = [1.2 + np.exp(-np.arange(20) / 2) + 0.002 * rng.standard_normal(20) for _ in rates]
    space = {"lr": Parameter(low=3e-3, high=5e-2, scale="log")}
    equal = built([{"lr": float(r)} for r in rates], {"val/loss": curves}, space=space)
    report = make_report(equal, [fired("warning", "pipeline", "data")])
    end = "All tried values of lr, 0.003 to 0.05, give the same result within noise."
    assert str(headline(report)).endswith(f"“Stop searching lr and repeat the best setting”. {end}")


def test_a_problem_that_the_study_leaves_as_it_is_comes_before_a_note_that_it_follows() -> None:
    note = fired("note", "boundary", "learning_rate", changes=WIDER)
    report = make_report(make_study(12, dense=False), [note, fired("warning", "pipeline", "data")])
    assert str(headline(report)).startswith("Search higher data. The best trials lie at the top of data. Then run")


def test_a_study_of_the_clipping_threshold_follows_the_finding_about_clipping() -> None:
    plan = RunPlan(plan="clip", numbers={"p90": 1.0, "median": 0.5, "norms": 100.0}, why="w")
    verdict = verdict_on(fired("warning", "stability", "x").findings[0], subject=None, changes=(plan,))
    report = make_report(make_study(12, dense=False), [verdict])
    (spec, *_) = report.next
    assert "grad_clip_norm" in spec.goal
    assert str(headline(report)) == f"{spec.goal}. The best trials lie at the top of x."


def test_it_has_the_range_of_the_next_study() -> None:
    report = make_report(of_one_optimizer(4), [fired("warning", "boundary", changes=(set_range("lr", 1e-4, 1.0),))])
    action = "Add lr: 1e-4 to 1, with a new range of learning_rate."
    assert str(headline(report)) == f"{action} The best trials lie at the top of lr."


def test_the_reason_is_that_of_the_finding_whose_range_the_study_has() -> None:
    """The cause only cuts off the diverged trials; what follows from it goes further."""
    cause = fired("warning", "infeasible", "x", changes=(set_range("learning_rate", 1e-4, 0.2),))
    waits = Explanation(rule=cause.rule, subject="x", because="It is the same range.", waits=False)
    lower = (set_range("learning_rate", 1e-5, 0.01),)
    follower = fired("warning", "boundary", "learning_rate", changes=lower, explained_by=waits)
    report = make_report(make_study(12, dense=False), [cause, follower])
    assert report.next_studies[0].spec.parameters["learning_rate"].high == 0.01
    assert str(headline(report)).endswith("The best trials lie at the top of learning_rate.")
    assert [str(c.finding.action) for c in cards_to_act_on(finding_cards(report), leading_finding(report))] == [
        "Search higher learning_rate"
    ]


def test_a_range_that_two_findings_made_has_the_reason_of_each_end() -> None:
    cut, lower = (set_range("learning_rate", low, high) for low, high in ((1e-4, 0.2), (1e-7, 1.0)))
    diverged = say("All trials from {high} up diverged. That is 5 of 9.", high=0.251)
    verdicts = [
        fired("warning", "infeasible", changes=(cut,), message=diverged),
        fired("warning", "boundary", changes=(lower,), message=say("The best trials lie at {high}.", high=1e-3)),
    ]
    text = str(headline(make_report(of_one_optimizer(4), verdicts)))
    assert text == ("Search lower learning_rate: 1e-7 to 0.2. The best trials lie at 0.001. All trials from 0.251 up diverged.")


def test_findings_for_later_are_not_counted() -> None:
    verdicts = [fired("critical", "boundary"), fired("warning", "steps", "wd")]
    report = make_report(make_study(12, dense=False), verdicts)
    later = Deferred(rule=verdicts[1].rule, message=verdicts[1].findings[0].message, reason="it is unlikely")
    waiting = unplanned(report.model_copy(update={"deferred": (later,)}))
    assert headline(waiting) == "Search higher lr. The best trials lie at the top of lr."


def test_a_goal_about_several_ranges_leaves_their_numbers_to_the_figure() -> None:
    study = of_one_optimizer(12, dense=False)
    cuts = (("learning_rate", 1e-3, 0.1), ("weight_decay", 1e-6, 1e-3))
    made = [found(n, "sampling", set_range(n, a, b), subject=n) for n, a, b in cuts]
    report = make_report(study, made)
    assert "; " in report.next_studies[0].spec.goal
    assert str(headline_goal_and_reason(report)[0]) == "Narrow learning_rate and weight_decay."


def test_a_range_that_goes_beyond_what_findings_proposed_has_its_own_reason() -> None:
    cut = SetRange(parameter="learning_rate", low=1e-3, high=1.0, scale="log", why="The rest is margin")
    report = make_report(of_one_optimizer(12, dense=False), [found("r", "sampling", cut, subject="learning_rate")])
    study, *_ = report.next_studies
    old = study.spec.parameters["learning_rate"]
    moved = old.model_copy(update={"high": 3.0, "why": "Most of the best trials lie there"})
    spec = study.spec.with_parameter("learning_rate", moved)
    shown = report.model_copy(update={"next_studies": (study.model_copy(update={"spec": spec}),)})
    assert str(headline_goal_and_reason(shown)[1]) == "Most of the best trials lie there."
    assert str(headline_goal_and_reason(report)[1]) == "r fired."


def test_a_study_that_follows_no_finding_says_what_it_is_for() -> None:
    rng = np.random.default_rng(0)
    names = ("lr", "momentum", "dropout", "weight_decay", "label_smoothing", "grad_clip")
    params = [{n: float(rng.uniform(0.1, 1)) for n in names} for _ in range(8)]
    few = built(params, {"val/loss": [[1.0, 0.9, 0.5 + 0.01 * i] for i in range(8)]})
    action, why = map(str, headline_goal_and_reason(analyze_study(few, rules=[])))
    assert action.startswith("Search only lr: 8 trials cannot show the effects of 6 hyperparameters")
    assert why == "The other hyperparameters stay fixed for now: a search of all 6 takes about 56 trials."


def test_further_new_ranges_are_counted_in_the_headline() -> None:
    cut = set_range("learning_rate", 1e-3, 0.1)
    report = make_report(of_one_optimizer(12, dense=False), [found("r", "sampling", cut, subject="learning_rate")])
    study, *_ = report.next_studies
    assert str(headline_goal_and_reason(report)[0]).endswith("learning_rate: 0.001 to 0.1.")
    spec = study.spec
    for name, end in (("dropout", ", with a new range of dropout."), ("warmup_steps", ", with new ranges of 2 more.")):
        old = report.spec.parameters[name]
        narrower = old.model_copy(update={"high": (old.high or 0.0) / 2})
        spec = spec.with_parameter(name, narrower)
        shown = report.model_copy(update={"next_studies": (study.model_copy(update={"spec": spec}),)})
        assert str(headline_goal_and_reason(shown)[0]).endswith(end)


def test_a_study_that_no_finding_asks_for_is_the_first_thing_to_do() -> None:
    study = of_one_optimizer(12, dense=False)
    cut = set_range("learning_rate", 1e-3, 0.1)
    assert not names_unrequested_study(make_report(study, [found("r", "sampling", cut, subject="learning_rate")]))
    alone = make_report(study, [])
    assert alone.next_studies
    assert names_unrequested_study(alone)
    assert not names_unrequested_study(unplanned(alone))
