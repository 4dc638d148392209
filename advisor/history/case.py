"""Collects the data to decide whether a candidate setting should replace the incumbent."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from advisor.history import fairness
from advisor.history.answer import MAX_NAME_CHARS, Answer, MoreRuns, Side, describe_further_runs, describe_runs_cost, quote_name
from advisor.history.fairness import BudgetExcess, Limit
from advisor.history.proposals import (
    Decision,
    ProposedSetting,
    default_incumbent,
    describe_setting_differences,
    noise_floor,
    proposed_settings,
    recorded_tag_names,
    setting_key_with_tags,
    setting_of_trials,
)
from advisor.history.selection import find_trials, parse_filters
from advisor.model.errors import AdvisorError
from advisor.model.study import Study
from advisor.model.words import listed, shorten
from advisor.stats.sequential import NoiseFloor

MAX_RUNS_PER_SETTING = 40
"""Maximum number of runs per setting for one decision. Our choice."""


@dataclass(frozen=True)
class GateQuestion:
    """A question: should a candidate setting replace the incumbent? An empty field stands for the default."""

    candidate: str
    against: str | None = None
    worthwhile: str | None = None
    """Smallest worthwhile improvement, as text, in units of the objective or in percent of the incumbent's value."""
    at_most: Sequence[str] = ()
    at_least: Sequence[str] = ()
    allow: Collection[str] = ()
    """Kinds of budget, such as "steps", in which the candidate may exceed the incumbent; `fairness.BUDGET_TOLERANCES` lists all
    kinds."""
    alone: bool = False
    """True if no other question is asked about the experiment, so that significance levels need no correction for multiple
    tests."""
    max_seeds: int = MAX_RUNS_PER_SETTING


@dataclass
class Case:
    """A question whether a candidate setting should replace the incumbent, and the data needed to answer it."""

    study: Study
    question: GateQuestion
    all_settings: list[ProposedSetting]
    candidate: ProposedSetting
    incumbent: ProposedSetting
    incumbent_is: str
    tags: tuple[str, ...]
    floor: NoiseFloor | None
    limits: tuple[Limit, ...]
    budget: tuple[BudgetExcess, ...]
    notes: list[str] = field(default_factory=list)

    def build_answer(self, decision: Decision, reason: str, further_runs: tuple[MoreRuns, ...], **figures: object) -> Answer:
        """Return the answer, including facts about both settings. figures: results of the statistical test, if one was run."""
        objective, record = self.study.spec.objective, self.candidate.gate_record
        data = {
            "action": self._choose_action(decision, reason, further_runs),
            "decision": decision,
            "reason": reason,
            "run": further_runs,
            "candidate": _describe_side(self.study, self.candidate),
            "incumbent": _describe_side(self.study, self.incumbent),
            "incumbent_is": self.incumbent_is,
            "metric": objective.metric,
            "direction": objective.direction,
            "budget": self.budget,
            "limits": self.limits,
            "looks": 1 + (record.looks if record is not None else 0),
            "kept_at": self.candidate.kept_at,
            "kept_against": record.kept_against if record is not None else "",
            "tags": self.tags,
            "changed": describe_setting_differences(self.candidate, self.incumbent),
            "notes": tuple(self.notes),
            **figures,
        }
        return Answer.model_validate(data)

    def _choose_action(self, decision: Decision, reason: str, further_runs: Sequence[MoreRuns]) -> str:
        own, other = quote_name(self.candidate.name), quote_name(self.incumbent.name)
        if decision == "keep":
            return f"Keep {own} in place of {other}. {reason}"
        if decision == "discard":
            return f"Discard {own}. {reason}"
        if not further_runs:
            return f"Not decided. {reason}"
        runs = listed(describe_further_runs(m) for m in further_runs)
        return f"Not decided: run {runs}{describe_runs_cost(further_runs)}, and ask again after each run. {reason}"

    def runs_to_add(self, runs: tuple[int, int]) -> tuple[MoreRuns, ...]:
        """Return the next runs of both settings, with their cost and with seeds that no earlier run used. runs: (number of
        candidate runs, number of incumbent runs)."""
        additions = []
        seeds_logged = any(t.seed is not None for t in self.study.trials)
        for n, side in zip(runs, (self.candidate, self.incumbent), strict=True):
            if not n:
                continue
            used = {t.seed for t in side.trials}
            free = [s for s in range(len(used) + n + 1) if s not in used][:n] if seeds_logged else []
            measured_runs = side.runs_with_result or self.incumbent.runs_with_result
            steps, seconds = (fairness.median_budget(self.study, measured_runs, kind) for kind in ("steps", "seconds"))
            additions.append(
                MoreRuns(
                    setting=shorten(side.name, MAX_NAME_CHARS),
                    run=side.trials[0].id,
                    runs=n,
                    seeds=tuple(free),
                    steps=n * steps if math.isfinite(steps) else None,
                    hours=n * seconds / 3600 if math.isfinite(seconds) else None,
                )
            )
        return tuple(additions)


def build_case(study: Study, question: GateQuestion, experiment: str) -> Case:
    """Collect the settings that a question names, and the data to answer it. Raises AdvisorError if the question about a change
    is ambiguous or invalid."""
    named_tags = {n for text in (question.candidate, question.against or "") for n in parse_filters(text)}
    tags = (named_tags | recorded_tag_names(study)) & {n for t in study.trials for n in t.tags}
    key = setting_key_with_tags(tags)
    every = proposed_settings(study, key)
    candidate = setting_of_trials(every, find_trials(study, question.candidate, experiment, key))
    if question.against is not None:
        incumbent, incumbent_is = (setting_of_trials(every, find_trials(study, question.against, experiment, key)), "as asked")
    else:
        incumbent, incumbent_is = default_incumbent(every, candidate)
    if incumbent is candidate:
        raise AdvisorError(
            f"{question.candidate} and {question.against} are the same setting: equal hyperparameters and commit; log what differs "
            "as a parameter or commit it, or name them by a tag (NAME=VALUE)"
        )
    limits = [
        fairness.parse_metric_limit(study, candidate.runs_with_result or candidate.trials, text, at_most=is_maximum)
        for texts, is_maximum in ((question.at_most, True), (question.at_least, False))
        for text in texts
    ]
    budget: list[BudgetExcess] = []
    if candidate.runs_with_result and incumbent.runs_with_result:
        budget = fairness.budget_excesses(study, candidate.runs_with_result, incumbent.runs_with_result)
    return Case(
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
        _uncommitted_code_notes(candidate, incumbent),
    )


def _uncommitted_code_notes(candidate: ProposedSetting, incumbent: ProposedSetting) -> list[str]:
    notes = []
    for side in (candidate, incumbent):
        if any(t.facts.get("git_dirty") == "true" for t in side.trials):
            notes.append(f"{quote_name(side.name)} ran with uncommitted changes, so its commit does not identify its code.")
    return notes


def _describe_side(study: Study, proposal: ProposedSetting) -> Side:
    return Side(
        name=shorten(proposal.name, MAX_NAME_CHARS),
        run=proposal.trials[0].id,
        commit=shorten(proposal.trials[0].commit),
        runs=len(proposal.costs),
        failed=len(proposal.failed),
        running=proposal.running,
        value=study.objective_value(proposal.mean) if len(proposal.costs) else None,
    )
