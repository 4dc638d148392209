"""Decides whether to keep or discard a proposed change (the candidate), or to run more seeds first. `stats.sequential` explains
the statistical test.

The decisions have two guarantees, however often a question is asked. First, at most a share `MAX_WRONGLY_KEPT_SHARE` of the
kept candidates is expected to be no better than the replaced settings. Second, a candidate with a worthwhile improvement is
discarded with a probability of at most 20 %, unless a setting reaches the maximum number of runs. Candidates that stay
undecided, had a larger budget, lost more runs or violate a limit are discarded."""

from __future__ import annotations

import math
import time
from contextlib import suppress

from advisor.history import fairness
from advisor.history.answer import (
    Answer,
    GateCase,
    GateQuestion,
    build_case,
    describe_budget_excess,
    describe_violated_limit,
    percent_text,
    quote_name,
)
from advisor.history.compare import validation_sd
from advisor.history.proposals import Decision, GateRecord, positions_in_loop
from advisor.model.errors import AdvisorError
from advisor.model.finding import MissingData
from advisor.model.study import Study
from advisor.model.words import count, listed, number
from advisor.stats.sequential import NoiseFloor, RunSample, SequentialTest, SignificanceLevels, interval_half_width

MAX_WRONGLY_KEPT_SHARE = 0.05
"""Maximum expected share of kept candidates, over a loop of proposals, that are no better than the setting that they replaced."""
MAX_MISS_PROBABILITY = 0.2
"""Maximum probability of discarding a candidate with a worthwhile improvement. The usual power is 80 %."""
DEFAULT_WORTHWHILE_GAIN = math.sqrt(2)
"""Default of the smallest worthwhile improvement, in standard deviations of the objective between seeds. The default equals the
standard deviation of the difference between two runs."""
MAX_WORTHWHILE_FACTOR = 1000
"""The smallest worthwhile improvement must lie within this factor of the standard deviation between seeds. Our choice."""
NORMAL_QUANTILE_95 = 1.96
"""Half-width of a normal 95 % confidence interval, in standard errors."""
FIRST_RUN_COUNTS = (2, 3)
"""(Candidate runs, incumbent runs) for a first estimate of the standard deviation between seeds. Our choice."""


def answer_for_study(study: Study, question: GateQuestion, experiment: str) -> Answer:
    """Return the answer to a question about two settings. Raises AdvisorError if the question is ambiguous or invalid."""
    case = build_case(study, question, experiment)
    early_answer = _decide_without_test(case)
    if early_answer is not None:
        return early_answer
    assert case.noise_floor is not None
    worthwhile = _worthwhile_gain(question.worthwhile, case)
    kept_count = sum(p.kept_at is not None for p in case.all_settings if p is not case.candidate)
    test = _build_sequential_test(case, case.noise_floor, worthwhile, kept_count)
    lead = test.estimated_gain
    half_interval = interval_half_width(lead.error, lead.freedom, worthwhile, 0.95)
    question_number, _ = positions_in_loop(case.all_settings, case.candidate)
    test_results = {
        "gain": lead.gain,
        "interval": (lead.gain - half_interval, lead.gain + half_interval) if math.isfinite(half_interval) else None,
        "noise": case.noise_floor.sd,
        "noise_freedom": case.noise_floor.freedom,
        "worthwhile": worthwhile,
        "chance": lead.chance_above(worthwhile),
        "evidence_to_keep": test.evidence_to_keep,
        "evidence_to_discard": test.evidence_to_discard,
        "question": 1 if question.alone else question_number,
        "kept_before": 0 if question.alone else kept_count,
    }
    decision, reason, next_runs = _decide_with_test(case, test)
    if decision != "discard" and lead.gain > 0:
        with suppress(MissingData):
            error = validation_sd((case.study, p.runs_with_result) for p in (case.candidate, case.incumbent))
            if lead.gain <= NORMAL_QUANTILE_95 * error:
                noise = f"On other validation sets of this size the gain would vary by {number(error, 2)}"
                case.notes.append(f"{noise}; only more validation examples reduce this variation.")
    return case.build_answer(decision, reason, next_runs, **test_results)


def make_gate_record(answer: Answer) -> GateRecord:
    """Return the record of the answer, which is stored with the candidate's runs. An earlier decision to keep it stays."""
    now = time.time()
    kept_at, replaced = answer.kept_at, answer.kept_against
    if answer.decision == "keep" and replaced != answer.incumbent.run:
        kept_at, replaced = now, answer.incumbent.run
    return GateRecord(answer.decision, answer.incumbent.run, now, answer.looks, answer.metric, answer.tags, kept_at, replaced)


def _worthwhile_gain(text: str | None, case: GateCase) -> float:
    assert case.noise_floor is not None
    sd = case.noise_floor.sd
    if text is None:
        return DEFAULT_WORTHWHILE_GAIN * sd
    is_percentage = text.strip().endswith("%")
    try:
        gain = float(text.strip().rstrip("%")) * (abs(case.incumbent.mean) / 100 if is_percentage else 1)
    except ValueError:
        gain = -1.0
    if not 0 < gain < math.inf:
        raise AdvisorError(f"--worthwhile takes a gain above 0, such as 0.002 or 1%, not {text!r}")
    if not sd / MAX_WORTHWHILE_FACTOR <= gain <= sd * MAX_WORTHWHILE_FACTOR:
        low, high = (number(x, 2) for x in (sd / MAX_WORTHWHILE_FACTOR, sd * MAX_WORTHWHILE_FACTOR))
        raise AdvisorError(
            f"--worthwhile {text} is out of proportion to the standard deviation between seeds ({number(sd, 2)}); pass a gain "
            f"from {low} to {high}"
        )
    return gain


def _build_sequential_test(case: GateCase, floor: NoiseFloor, worthwhile: float, kept_count: int) -> SequentialTest:
    costs = case.candidate.costs
    if case.question.alone:
        levels = SignificanceLevels.single_question_levels(error=MAX_WRONGLY_KEPT_SHARE, miss=MAX_MISS_PROBABILITY)
    else:
        numbers = positions_in_loop(case.all_settings, case.candidate)
        error, miss = MAX_WRONGLY_KEPT_SHARE, MAX_MISS_PROBABILITY
        levels = SignificanceLevels.in_loop_levels(*numbers, kept_count, error=error, miss=miss)
    # Leave out the first run of a setting, even without a result: the setting may have been selected because of this run.
    unselected = costs[1:] if case.candidate.runs_with_result[0] is case.candidate.trials[0] else costs
    unselected = unselected if len(case.candidate.trials) > 1 else unselected[:0]
    later = RunSample.from_costs(unselected) if len(unselected) else None
    incumbent = RunSample.from_costs(case.incumbent.costs)
    return SequentialTest(RunSample.from_costs(costs), later, incumbent, floor, worthwhile, levels)


def _decide_without_test(case: GateCase) -> Answer | None:
    candidate, incumbent = case.candidate, case.incumbent
    name = quote_name(candidate.name)
    if not candidate.runs_with_result:
        if candidate.running:
            return case.build_answer("not decided", f"{name} is still running; ask again when it has ended.")
        if candidate.failed:
            failed_text = f"{count(len(candidate.failed), 'run')} of the candidate failed"
            return case.build_answer("discard", f"{failed_text}, and none has a result.")
        return case.build_answer("not decided", f"No run of {name} has a result at full length.", (1, 0))
    if unknown := [quote_name(limit.metric) for limit in case.limits if limit.value is None]:
        return case.build_answer("not decided", f"The candidate did not log {listed(unknown)}, which a limit needs.")
    if violated := [describe_violated_limit(limit) for limit in case.limits if not limit.is_met]:
        return case.build_answer("discard", f"The candidate violates {listed(violated)}.")
    if not incumbent.runs_with_result:
        return case.build_answer("not decided", f"No run of {quote_name(incumbent.name)} has a result.", (0, 1))
    if case.noise_floor is not None:
        return None
    if any(len(p.costs) > 1 for p in case.all_settings):
        why = "Runs of the same setting have identical results, so the seed seems to have no effect; vary the seed."
        return case.build_answer("not decided", why)
    why = "No setting was run twice, so the variation between seeds is unknown."
    runs = [max(n - len(p.costs), 0) for n, p in zip(FIRST_RUN_COUNTS, (candidate, incumbent), strict=True)]
    return case.build_answer("not decided", why, (runs[0] or 1, runs[1]))


def _decide_with_test(case: GateCase, test: SequentialTest) -> tuple[Decision, str, tuple[int, int]]:
    """Return (decision, reason, numbers of runs to do next). The numbers are (of the candidate, of the incumbent)."""
    lead = test.estimated_gain
    worth, chance = number(test.min_worthwhile_gain, 3), lead.chance_above(test.min_worthwhile_gain)
    if test.decision == "keep":
        if case.budget:
            excess_text = listed((describe_budget_excess(b) for b in case.budget), limit=len(case.budget))
            text = f"The candidate is better, but had a larger budget: {excess_text}. Propose it again with the incumbent's budget."
            return "discard", text, (0, 0)
        if lost := fairness.lost_runs_clause(case.candidate, case.incumbent):
            text = f"The candidate is better, but {lost}. If these runs ended by accident, repeat their seeds and ask again."
            return "discard", text, (0, 0)
        return "keep", f"The candidate is better by {number(lead.gain, 3)}, which chance does not explain.", (0, 0)
    if test.decision == "discard":
        return "discard", f"A gain of {worth} or more is improbable ({percent_text(chance)}).", (0, 0)
    max_seeds = case.question.max_seeds
    if test.next_run(max_seeds) == (0, 0):
        return "discard", f"After {max_seeds} runs of each setting, the data still show no gain.", (0, 0)
    runs = f"{count(test.candidate.size, 'run')} against {test.incumbent.size}"
    sd = number(lead.repeat_sd, 2)
    reason = f"{runs} do not show whether the gain of {number(lead.gain, 3)} is chance: results vary by {sd} between seeds."
    return "not decided", reason, _count_next_runs(test, max_seeds)


def _count_next_runs(test: SequentialTest, max_runs: int) -> tuple[int, int]:
    """Return the smallest numbers of further runs that may lead to a decision, as (of the candidate, of the incumbent). Their
    total is at most the number of existing runs."""
    runs, step = (0, 0), test.next_run(max_runs)
    planned_runs = test.plan_runs(max_runs)
    limit = min(sum(planned_runs) if planned_runs is not None else max_runs, test.candidate.size + test.incumbent.size)
    while step != (0, 0) and sum(runs) < limit:
        runs = runs[0] + step[0], runs[1] + step[1]
        step = test.with_more_runs(runs).next_run(max_runs)
    return runs
