"""The question whether to keep a proposed change, the data to answer it, and the answer."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from advisor.history import fairness, proposals
from advisor.history.fairness import BudgetExcess, Limit
from advisor.model.errors import AdvisorError
from advisor.model.frozen import FrozenModel
from advisor.model.study import Study
from advisor.model.words import count, listed, number, plain_number, shorten
from advisor.stats.sequential import NoiseFloor

MAX_NAME_CHARS = 80
"""Maximum number of characters of a name that comes from the tracking store and appears in an answer."""
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
    """Kinds of budget (keys of `fairness.BUDGET_TOLERANCES`) in which the candidate may exceed the incumbent."""
    alone: bool = False
    """True if no other question is asked about the experiment, so that significance levels need no correction."""
    max_seeds: int = MAX_RUNS_PER_SETTING


class Side(FrozenModel):
    """The candidate setting or the incumbent setting in a comparison."""

    name: str
    run: str
    """Id of the first run of the setting."""
    commit: str = ""
    runs: int
    """Number of runs with a result, one per seed."""
    failed: int = 0
    running: int = 0
    value: float | None = None
    """Mean of the objective over the runs with a result."""


class MoreRuns(FrozenModel):
    """Further runs of one setting that are needed to decide about a change."""

    setting: str
    run: str
    """Id of a run with the setting."""
    runs: int
    seeds: tuple[int, ...] = ()
    """Seeds for the further runs; empty if no earlier run logged its seed."""
    steps: float | None = None
    hours: float | None = None


class Answer(FrozenModel):
    """The gate's answer. The field `action` comes first, because some callers read only the first field of an answer."""

    schema_version: Literal[1] = 1
    action: str
    decision: proposals.Decision
    reason: str
    run: tuple[MoreRuns, ...] = ()
    """Further runs that can decide whether to keep the candidate; ask again after each run."""
    candidate: Side
    incumbent: Side
    incumbent_is: str
    """Reason why this setting, and no other setting, is the incumbent."""
    metric: str
    direction: str
    gain: float | None = None
    """Improvement of the candidate over the incumbent, in units of the objective."""
    interval: tuple[float, float] | None = None
    """Interval that contains the true improvement with 95 % probability, however often the question is asked, or None."""
    noise: float | None = None
    """Standard deviation of the objective between seeds, pooled over all repeated settings."""
    noise_freedom: int | None = None
    worthwhile: float | None = None
    chance: float | None = None
    """Posterior probability that the improvement is worthwhile, given the runs of both settings and a flat prior."""
    evidence_to_keep: float | None = None
    """Strength of the evidence for an improvement; the candidate is kept only if the strength is at least 1."""
    evidence_to_discard: float | None = None
    question: int | None = None
    """Position of the candidate among all settings of the experiment, counted from 1."""
    kept_before: int | None = None
    """Number of other settings that were kept so far, or None if the answer needed no statistical test."""
    looks: int = 1
    """Number of statistical tests of the candidate so far, including the present test."""
    kept_at: float | None = None
    """Time of the earlier answer that kept the candidate, in seconds since 1970, or None."""
    kept_against: str = ""
    """Id of a run of the setting that the candidate replaced; empty if the candidate was never kept."""
    tags: tuple[str, ...] = ()
    """Names of the tags that distinguish settings, in addition to hyperparameters and commit."""
    recorded: bool = False
    """True if the tracking store has recorded the answer."""
    budget: tuple[BudgetExcess, ...] = ()
    limits: tuple[Limit, ...] = ()
    changed: tuple[str, ...] = ()
    """Differences between the settings of candidate and incumbent, one phrase for each."""
    notes: tuple[str, ...] = ()

    @property
    def exit_status(self) -> int:
        """Exit status of the command that prints the answer."""
        return {"keep": 0, "discard": 1, "not decided": 3}[self.decision]


def quote_name(name: str) -> str:
    """Return a shortened name for a sentence, in quotation marks if it has several words."""
    text = shorten(name)
    return f'"{text.replace(chr(34), chr(39))}"' if " " in text else text


def describe_further_runs(addition: MoreRuns) -> str:
    """Return text about further runs, such as "2 more seeds of wide (seeds 1 and 2)", where "wide" is the name of a run."""
    noun = "seed" if len(addition.seeds) == 1 else "seeds"
    seeds = f" ({noun} {listed(map(str, addition.seeds), limit=8)})" if addition.seeds else ""
    return f"{count(addition.runs, 'more seed')} of {quote_name(addition.setting)}{seeds}"


def describe_runs_cost(additions: Sequence[MoreRuns]) -> str:
    """Return the cost of all further runs as text that starts with a colon, or an empty text if the cost is unknown."""
    steps = sum(m.steps for m in additions if m.steps is not None)
    hours = sum(m.hours for m in additions if m.hours is not None)
    cost_texts = [f"{steps:,.0f} steps"] if steps else []
    cost_texts += [f"{number(hours, 2)} hours"] if hours >= 0.1 else [f"{number(3600 * hours, 2)} seconds"] if hours else []
    return f": {', '.join(cost_texts)}" if cost_texts else ""


def describe_violated_limit(limit: Limit) -> str:
    """Return text about a violated limit on a metric, with the metric's value for the candidate."""
    bound = f"at most {number(limit.at_most)}" if limit.at_most is not None else f"at least {number(limit.at_least)}"
    value = f"is {number(limit.value)}" if limit.value is not None else "was not logged"
    return f"the limit on {quote_name(limit.metric)}: {bound}; the value {value}"


def describe_budget_excess(excess: BudgetExcess) -> str:
    """Return text that compares the budgets of candidate and incumbent, such as "800 steps against 400"."""
    return f"{number(excess.candidate, 3)} {excess.kind} against {number(excess.incumbent, 3)}"


def percent_text(share: float) -> str:
    """Return a probability as text, rounded so that it is never 0 % or 100 %."""
    return f"{plain_number(100 * min(max(share, 0.001), 0.999), 3)} %"


@dataclass
class GateCase:
    """A question whether a candidate setting should replace the incumbent, and the data needed to answer it."""

    study: Study
    question: GateQuestion
    all_settings: list[proposals.ProposedSetting]
    candidate: proposals.ProposedSetting
    incumbent: proposals.ProposedSetting
    incumbent_is: str
    tags: tuple[str, ...]
    noise_floor: NoiseFloor | None
    limits: tuple[Limit, ...]
    budget: tuple[BudgetExcess, ...]
    notes: list[str] = field(default_factory=list)

    def build_answer(
        self, decision: proposals.Decision, reason: str, runs: tuple[int, int] = (0, 0), **figures: object
    ) -> Answer:
        """Return the answer. runs: numbers of further runs (candidate, incumbent). figures: results of a statistical test."""
        further_runs = self._further_runs(runs)
        objective, record = self.study.spec.objective, self.candidate.gate_record
        own, other = quote_name(self.candidate.name), quote_name(self.incumbent.name)
        if decision == "keep":
            action = f"Keep {own} in place of {other}. {reason}"
        elif decision == "discard":
            action = f"Discard {own}. {reason}"
        elif not further_runs:
            action = f"Not decided. {reason}"
        else:
            runs_text = listed(describe_further_runs(m) for m in further_runs)
            action = f"Not decided: run {runs_text}{describe_runs_cost(further_runs)}, and ask again after each run. {reason}"
        data = {
            "action": action,
            "decision": decision,
            "reason": reason,
            "run": further_runs,
            "candidate": self._side(self.candidate),
            "incumbent": self._side(self.incumbent),
            "incumbent_is": self.incumbent_is,
            "metric": objective.metric,
            "direction": objective.direction,
            "budget": self.budget,
            "limits": self.limits,
            "looks": 1 + (record.looks if record is not None else 0),
            "kept_at": self.candidate.kept_at,
            "kept_against": record.kept_against if record is not None else "",
            "tags": self.tags,
            "changed": proposals.describe_setting_differences(self.candidate, self.incumbent),
            "notes": tuple(self.notes),
            **figures,
        }
        return Answer.model_validate(data)

    def _side(self, proposal: proposals.ProposedSetting) -> Side:
        return Side(
            name=shorten(proposal.name, MAX_NAME_CHARS),
            run=proposal.trials[0].id,
            commit=shorten(proposal.trials[0].commit),
            runs=len(proposal.costs),
            failed=len(proposal.failed),
            running=proposal.running,
            value=self.study.objective_value(proposal.mean) if len(proposal.costs) else None,
        )

    def _further_runs(self, runs: tuple[int, int]) -> tuple[MoreRuns, ...]:
        additions = []
        seeds_logged = any(t.seed is not None for t in self.study.trials)
        for n, side in zip(runs, (self.candidate, self.incumbent), strict=True):
            if not n:
                continue
            used = {t.seed for t in side.trials}
            seeds = [s for s in range(len(used) + n + 1) if s not in used][:n] if seeds_logged else []
            measured = side.runs_with_result or self.incumbent.runs_with_result
            steps, seconds = (fairness.median_budget(self.study, measured, kind) for kind in ("steps", "seconds"))
            additions.append(
                MoreRuns(
                    setting=shorten(side.name, MAX_NAME_CHARS),
                    run=side.trials[0].id,
                    runs=n,
                    seeds=tuple(seeds),
                    steps=n * steps if math.isfinite(steps) else None,
                    hours=n * seconds / 3600 if math.isfinite(seconds) else None,
                )
            )
        return tuple(additions)


def build_case(study: Study, question: GateQuestion, experiment: str) -> GateCase:
    """Collect the data to answer a question. Raises AdvisorError if the question is ambiguous or invalid."""
    filter_names = {n for text in (question.candidate, question.against or "") for n in proposals.parse_filters(text)}
    tags = (filter_names | proposals.recorded_tag_names(study)) & {n for t in study.trials for n in t.tags}
    settings = proposals.proposed_settings(study, key := proposals.setting_key_with_tags(tags))
    candidate = proposals.setting_of_trials(settings, proposals.find_trials(study, question.candidate, experiment, key))
    if question.against is not None:
        incumbent_trials = proposals.find_trials(study, question.against, experiment, key)
        incumbent, incumbent_is = proposals.setting_of_trials(settings, incumbent_trials), "as asked"
    else:
        incumbent, incumbent_is = proposals.default_incumbent(settings, candidate)
    if incumbent is candidate:
        raise AdvisorError(
            f"{question.candidate} and {question.against} are the same setting: equal hyperparameters and commit; log the "
            "difference as a parameter, commit it, or name the settings by a tag (NAME=VALUE)"
        )
    limits = [
        fairness.parse_metric_limit(study, candidate.runs_with_result or candidate.trials, text, at_most=is_maximum)
        for texts, is_maximum in ((question.at_most, True), (question.at_least, False))
        for text in texts
    ]
    runs = candidate.runs_with_result, incumbent.runs_with_result
    budget = fairness.budget_excesses(study, *runs) if all(runs) else []
    return GateCase(
        study,
        question,
        settings,
        candidate,
        incumbent,
        incumbent_is,
        tuple(sorted(tags)),
        proposals.noise_floor(settings),
        tuple(limits),
        tuple(b for b in budget if b.kind not in question.allow),
        [
            f"{quote_name(side.name)} ran with uncommitted changes, so its commit does not identify its code."
            for side in (candidate, incumbent)
            if any(t.facts.get("git_dirty") == "true" for t in side.trials)
        ],
    )
