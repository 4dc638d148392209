"""Decides about a proposed change, the candidate: keep it, discard it, or run more seeds first. `stats.sequential` explains the
test.

The gate guarantees the following, however often it is asked. Over a loop of proposals, the expected share of kept candidates that
are no better than the setting they replaced is at most `ERROR`. A candidate with a worthwhile gain is discarded with probability
`MISS` at most before both settings have the maximum number of runs. A candidate that is still undecided at this number is
discarded. A candidate that had a larger budget, has more runs without a result or violates a limit is discarded even if its results
are better.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from advisor.computed.pipeline import validation
from advisor.history import fairness
from advisor.history.answer import (
    MAX_NAME,
    Answer,
    MoreRuns,
    Side,
    cost_in_words,
    excess_in_words,
    limit_in_words,
    percent_text,
    quote_name,
    runs_in_words,
)
from advisor.history.compare import AGREEMENT
from advisor.history.fairness import BudgetExcess, Limit
from advisor.history.proposals import (
    Decision,
    Proposal,
    Record,
    default_incumbent,
    describe_differences,
    find_setting,
    loop_positions,
    noise_floor,
    proposals,
    recorded_tags,
    setting_key_with_tags,
)
from advisor.history.selection import find_trials, parse_filters
from advisor.model.errors import AdvisorError
from advisor.model.finding import MissingData
from advisor.model.study import Study
from advisor.model.words import count, listed, number, shorten
from advisor.stats.sequential import Levels, NoiseFloor, Sample, SequentialTest, half_width

ERROR = 0.05
"""Maximum expected share of kept candidates in a loop that are no better than the setting they replaced."""
MISS = 0.2
"""Maximum probability of discarding a candidate with a worthwhile gain; it means the usual power of 80 %."""
WORTHWHILE = math.sqrt(2)
"""Default of the smallest worthwhile gain, in standard deviations between seeds: the standard deviation of the difference between
two runs.
"""
WORTHWHILE_RANGE = 1000
"""Maximum ratio between the smallest worthwhile gain and the deviation between seeds, in either direction. Our choice."""
MAX_SEEDS = 40
"""Maximum number of runs of a setting for one decision. Our choice."""
NORMAL_95 = 1.96
"""Number of standard errors on each side of a 95 % interval."""
FIRST_SEEDS = (2, 3)
"""Number of runs of candidate and incumbent for a first estimate of the noise floor. We chose this number as the minimum to start a
loop.
"""


@dataclass(frozen=True)
class Question:
    """A question to the gate. Fields that are not set have their defaults."""

    candidate: str
    against: str | None = None
    worthwhile: str | None = None
    """Smallest worthwhile gain, in units of the objective or in percent of the incumbent's value."""
    at_most: Sequence[str] = ()
    at_least: Sequence[str] = ()
    allow: Collection[str] = ()
    """Kinds of budget that may be larger for the candidate, by their names in `fairness.TOLERANCE`."""
    alone: bool = False
    """True if this is the only question tested, so that significance levels need no correction for multiple tests."""
    max_seeds: int = MAX_SEEDS


@dataclass
class _QuestionData:
    """A question, and the data needed to answer it."""

    study: Study
    question: Question
    every: list[Proposal]
    candidate: Proposal
    incumbent: Proposal
    incumbent_is: str
    tags: tuple[str, ...]
    floor: NoiseFloor | None
    limits: tuple[Limit, ...]
    budget: tuple[BudgetExcess, ...]
    notes: list[str] = field(default_factory=list)


def answer_for_study(study: Study, question: Question, experiment: str) -> Answer:
    """Return the answer to a question about two settings of one study. Raises AdvisorError if the question is
    ambiguous or invalid.
    """
    case = _build_case(study, question, experiment)
    early_answer = _decide_without_test(case)
    if early_answer is not None:
        return early_answer
    assert case.floor is not None
    worthwhile = _worthwhile_gain(question.worthwhile, case)
    test = _build_test(case, case.floor, worthwhile)
    lead = test.lead
    half_interval = half_width(lead.error, lead.freedom, worthwhile, 0.95)
    question_number, _ = loop_positions(case.every, case.candidate)
    figures = {
        "gain": lead.gain,
        "interval": (lead.gain - half_interval, lead.gain + half_interval) if math.isfinite(half_interval) else None,
        "noise": case.floor.sd,
        "noise_freedom": case.floor.freedom,
        "worthwhile": worthwhile,
        "chance": lead.chance_above(worthwhile),
        "evidence_to_keep": test.keep,
        "evidence_to_discard": test.discard,
        "question": 1 if question.alone else question_number,
        "kept_before": 0 if question.alone else _number_kept(case),
    }
    decision, reason, next_runs = _decide(case, test)
    if decision != "discard":
        case.notes += _evaluation_note(case, lead.gain)
    return _answer(case, decision, reason, next_runs, **figures)


def record_of(answer: Answer) -> Record:
    """Return an answer's record, to be stored with the candidate. The record preserves an earlier decision to keep."""
    now = time.time()
    kept_at, replaced = answer.kept_at, answer.kept_against
    if answer.decision == "keep" and replaced != answer.incumbent.run:
        kept_at, replaced = now, answer.incumbent.run
    return Record(
        answer.decision, answer.incumbent.run, now, answer.looks, answer.metric, answer.tags, kept_at, replaced
    )


def _build_case(study: Study, question: Question, experiment: str) -> _QuestionData:
    named_tags = {n for text in (question.candidate, question.against or "") for n in parse_filters(text)}
    tags = (named_tags | recorded_tags(study)) & {n for t in study.trials for n in t.tags}
    key = setting_key_with_tags(tags)
    every = proposals(study, key)
    candidate = find_setting(every, find_trials(study, question.candidate, experiment, key))
    if question.against is not None:
        incumbent, incumbent_is = find_setting(every, find_trials(study, question.against, experiment, key)), "as asked"
    else:
        incumbent, incumbent_is = default_incumbent(every, candidate)
    if incumbent is candidate:
        raise AdvisorError(
            f"{question.candidate} and {question.against} are the same setting: equal hyperparameters and commit; log what differs "
            "as a parameter or commit it, or name them by a tag (NAME=VALUE)"
        )
    limits = [
        fairness.parse_limit(study, candidate.results or candidate.trials, text, at_most=is_maximum)
        for texts, is_maximum in ((question.at_most, True), (question.at_least, False))
        for text in texts
    ]
    budget: list[BudgetExcess] = []
    if candidate.results and incumbent.results:
        budget = fairness.budget_excesses(study, candidate.results, incumbent.results)
    return _QuestionData(
        study,
        question,
        every,
        candidate,
        incumbent,
        incumbent_is,
        tuple(sorted(tags)),
        noise_floor(every),
        tuple(limits),
        tuple(b for b in budget if b.kind not in question.allow),
        _notes(candidate, incumbent),
    )


def _notes(candidate: Proposal, incumbent: Proposal) -> list[str]:
    notes = []
    for side in (candidate, incumbent):
        if any(t.facts.get("git_dirty") == "true" for t in side.trials):
            notes.append(
                f"{quote_name(side.name)} ran with uncommitted changes, so its commit does not identify its code."
            )
    return notes


def _evaluation_note(case: _QuestionData, gain: float) -> list[str]:
    """Return a note if the gain is within the error from the validation set's size, which more seeds do not reduce."""
    try:
        errors = [
            float(np.sqrt(np.mean(validation.standard_errors(case.study, p.results) ** 2)))
            for p in (case.candidate, case.incumbent)
        ]
    except MissingData:
        return []
    error = math.hypot(*errors) * math.sqrt(1 - AGREEMENT)
    if gain <= 0 or gain > NORMAL_95 * error:
        return []
    return [
        f"On other validation sets of this size the gain would vary by {number(error, 2)}; only more examples change that."
    ]


def _number_kept(case: _QuestionData) -> int:
    return sum(p.kept_at is not None for p in case.every if p is not case.candidate)


def _worthwhile_gain(text: str | None, case: _QuestionData) -> float:
    assert case.floor is not None
    if text is None:
        return WORTHWHILE * case.floor.sd
    percent_text = text.strip().endswith("%")
    try:
        gain = float(text.strip().rstrip("%")) * (abs(case.incumbent.mean) / 100 if percent_text else 1)
    except ValueError:
        gain = -1.0
    if not 0 < gain < math.inf:
        raise AdvisorError(f"--worthwhile takes a gain above 0, such as 0.002 or 1%, not {text!r}")
    if not case.floor.sd / WORTHWHILE_RANGE <= gain <= case.floor.sd * WORTHWHILE_RANGE:
        low, high = (number(x, 2) for x in (case.floor.sd / WORTHWHILE_RANGE, case.floor.sd * WORTHWHILE_RANGE))
        raise AdvisorError(
            f"--worthwhile {text} is out of proportion to the deviation between seeds ({number(case.floor.sd, 2)}); "
            f"pass a gain from {low} to {high}"
        )
    return gain


def _build_test(case: _QuestionData, floor: NoiseFloor, worthwhile_gain: float) -> SequentialTest:
    costs = case.candidate.costs
    if case.question.alone:
        levels = Levels.alone(error=ERROR, miss=MISS)
    else:
        levels = Levels.in_loop(*loop_positions(case.every, case.candidate), _number_kept(case), error=ERROR, miss=MISS)
    # Fresh runs exclude the setting's first run, even if it has no result, because that run may have led to the setting's
    # selection.
    fresh = costs[1:] if case.candidate.results[0] is case.candidate.trials[0] else costs
    fresh = fresh if len(case.candidate.trials) > 1 else fresh[:0]
    return SequentialTest(
        Sample.of(costs),
        Sample.of(fresh) if len(fresh) else None,
        Sample.of(case.incumbent.costs),
        floor,
        worthwhile_gain,
        levels,
    )


# --- the decision ---------------------------------------------------------------------------------------------------------------


def _decide_without_test(case: _QuestionData) -> Answer | None:
    """Return the answer if it does not need a test: no result, a violated limit, or no noise floor."""
    candidate, incumbent = case.candidate, case.incumbent
    name = quote_name(candidate.name)
    if not candidate.results:
        if candidate.running:
            return _answer(case, "not decided", f"{name} is still running; ask again when it has ended.", ())
        if candidate.failed:
            return _answer(
                case, "discard", f"{count(len(candidate.failed), 'run')} of it failed, and none has a result.", ()
            )
        return _answer(
            case, "not decided", f"No run of {name} has a result at full length.", _runs_to_add(case, (1, 0))
        )
    unknown = [limit.metric for limit in case.limits if limit.value is None]
    if unknown:
        return _answer(
            case, "not decided", f"It did not log {listed(map(quote_name, unknown))}, which a limit needs.", ()
        )
    violated = [limit for limit in case.limits if not limit.met]
    if violated:
        return _answer(case, "discard", f"It violates {listed(limit_in_words(b) for b in violated)}.", ())
    if not incumbent.results:
        return _answer(
            case, "not decided", f"No run of {quote_name(incumbent.name)} has a result.", _runs_to_add(case, (0, 1))
        )
    if case.floor is None:
        has_repeats = any(len(p.costs) > 1 for p in case.every)
        why = (
            "Runs of the same setting have identical results, so the seed seems to have no effect; vary the seed."
            if has_repeats
            else "No setting was run twice, so the variation between seeds is unknown."
        )
        if has_repeats:
            return _answer(case, "not decided", why, ())
        runs = [max(n - len(p.costs), 0) for n, p in zip(FIRST_SEEDS, (candidate, incumbent), strict=True)]
        return _answer(case, "not decided", why, _runs_to_add(case, (runs[0] or 1, runs[1])))
    return None


def _decide(case: _QuestionData, test: SequentialTest) -> tuple[Decision, str, tuple[MoreRuns, ...]]:
    lead = test.lead
    worth, chance = number(test.worthwhile, 3), lead.chance_above(test.worthwhile)
    if test.decision == "keep" and case.budget:
        which = listed((excess_in_words(b) for b in case.budget), limit=len(case.budget))
        return (
            "discard",
            f"It is better, but it had a larger budget: {which}. Propose it again with the incumbent's budget.",
            (),
        )
    if test.decision == "keep" and (lost := fairness.lost_runs_clause(case.candidate, case.incumbent)):
        text = f"It is better where it succeeds, but {lost}. If that was an accident, repeat these seeds and ask again."
        return "discard", text, ()
    if test.decision == "keep":
        return "keep", f"It is better by {number(lead.gain, 3)}, which luck does not explain.", ()
    if test.decision == "discard":
        return "discard", f"A gain of {worth} or more is improbable ({percent_text(chance)}).", ()
    if test.next_run(case.question.max_seeds) == (0, 0):
        return "discard", f"After {case.question.max_seeds} runs of each setting a gain is still not shown.", ()
    plan = _next_runs(test, case.question.max_seeds)
    runs = f"{count(test.candidate.size, 'run')} against {test.incumbent.size}"
    reason = (
        f"{runs} do not settle whether the gain of {number(lead.gain, 3)} is luck: seeds vary by {number(lead.sd, 2)}."
    )
    return "not decided", reason, _runs_to_add(case, plan)


def _next_runs(test: SequentialTest, max_runs: int) -> tuple[int, int]:
    """Return the number of next runs (of the candidate, of the incumbent).

    Together, these are the smallest number of runs that may lead to a decision, but at most the number of runs of both settings so
    far.
    """
    runs, step = (0, 0), test.next_run(max_runs)
    needed = test.plan(max_runs)
    limit = min(sum(needed) if needed is not None else max_runs, test.candidate.size + test.incumbent.size)
    while step != (0, 0) and sum(runs) < limit:
        runs = runs[0] + step[0], runs[1] + step[1]
        step = test.with_more(runs).next_run(max_runs)
    return runs


# --- the answer -----------------------------------------------------------------------------------------------------------------


def _answer(
    case: _QuestionData, decision: Decision, reason: str, further_runs: tuple[MoreRuns, ...], **figures: object
) -> Answer:
    objective, record = case.study.spec.objective, case.candidate.record
    data = {
        "action": _action(case, decision, reason, further_runs),
        "decision": decision,
        "reason": reason,
        "run": further_runs,
        "candidate": _side(case.study, case.candidate),
        "incumbent": _side(case.study, case.incumbent),
        "incumbent_is": case.incumbent_is,
        "metric": objective.metric,
        "direction": objective.direction,
        "budget": case.budget,
        "limits": case.limits,
        "looks": 1 + (record.looks if record is not None else 0),
        "kept_at": case.candidate.kept_at,
        "kept_against": record.kept_against if record is not None else "",
        "tags": case.tags,
        "changed": describe_differences(case.candidate, case.incumbent),
        "notes": tuple(case.notes),
        **figures,
    }
    return Answer.model_validate(data)


def _action(case: _QuestionData, decision: Decision, reason: str, further_runs: Sequence[MoreRuns]) -> str:
    own, other = quote_name(case.candidate.name), quote_name(case.incumbent.name)
    if decision == "keep":
        return f"Keep {own} in place of {other}. {reason}"
    if decision == "discard":
        return f"Discard {own}. {reason}"
    if not further_runs:
        return f"Not decided. {reason}"
    runs = listed(runs_in_words(m) for m in further_runs)
    return f"Not decided: run {runs}{cost_in_words(further_runs)}, and ask again after each run. {reason}"


def _runs_to_add(case: _QuestionData, runs: tuple[int, int]) -> tuple[MoreRuns, ...]:
    additions = []
    seeds_logged = any(t.seed is not None for t in case.study.trials)
    for n, side in zip(runs, (case.candidate, case.incumbent), strict=True):
        if not n:
            continue
        used = {t.seed for t in side.trials}
        free = [s for s in range(len(used) + n + 1) if s not in used][:n] if seeds_logged else []
        measured_runs = side.results or case.incumbent.results
        steps, seconds = (fairness.median_budget(case.study, measured_runs, kind) for kind in ("steps", "seconds"))
        additions.append(
            MoreRuns(
                setting=shorten(side.name, MAX_NAME),
                run=side.trials[0].id,
                runs=n,
                seeds=tuple(free),
                steps=n * steps if math.isfinite(steps) else None,
                hours=n * seconds / 3600 if math.isfinite(seconds) else None,
            )
        )
    return tuple(additions)


def _side(study: Study, proposal: Proposal) -> Side:
    return Side(
        name=shorten(proposal.name, MAX_NAME),
        run=proposal.trials[0].id,
        commit=shorten(proposal.trials[0].commit),
        runs=len(proposal.costs),
        failed=len(proposal.failed),
        running=proposal.running,
        value=study.objective_value(proposal.mean) if len(proposal.costs) else None,
    )
