"""The settings of a store as proposals: hyperparameters and commit, in the order in which they were first run.

The order numbers the questions of a loop, so that no ledger is needed: a setting without a run cannot be kept. What earlier
questions decided stands in a tag of one run of each setting.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from advisor.computed.decision import repeats
from advisor.history.selection import given_name
from advisor.model.errors import AdvisorError
from advisor.model.space import FloatArray
from advisor.model.study import Study, Trial
from advisor.stats import difference
from advisor.stats.sequential import Floor

Decision = Literal["keep", "discard", "not decided"]


@dataclass(frozen=True, slots=True)
class Record:
    """What the latest question about a setting decided."""

    decision: Decision
    against: str
    """Id of a run of the incumbent."""
    at: float
    """Time of the question in seconds since 1970."""
    looks: int
    """Number of questions about the setting so far."""


@dataclass(frozen=True)
class Proposal:
    """A setting and its runs, in the order of their start."""

    key: repeats.Key
    name: str
    """Name of its runs, or of its first run if other settings have runs with the same name."""
    trials: tuple[Trial, ...]
    """All runs, also failed and running ones."""
    results: tuple[Trial, ...]
    """Runs with a result at full length, one per seed."""
    costs: FloatArray
    """Best cost of each result."""
    failed: tuple[Trial, ...]
    record: Record | None

    @property
    def mean(self) -> float:
        """Mean cost of the results; infinite without one."""
        return float(np.mean(self.costs)) if len(self.costs) else float("inf")

    @property
    def running(self) -> int:
        """Number of runs that have not ended."""
        return sum(t.status == "running" for t in self.trials)


def key_with(tags: Collection[str] = ()) -> repeats.KeyOf:
    """Return a function that returns the key of a trial's setting: hyperparameters, commit and the values of these tags."""

    def key(trial: Trial) -> repeats.Key:
        own = [(f"tag {name}", trial.tags.get(name, "")) for name in sorted(tags) if name not in trial.params]
        return (*repeats.key(trial), ("commit", trial.commit), *own)

    return key


def proposals(study: Study, key: repeats.KeyOf) -> list[Proposal]:
    """Return all settings of the study in the order of their first start."""
    with_results = {key(s.trials[0]): s for s in repeats.settings_of(study, study.trials, key)}
    groups: dict[repeats.Key, list[Trial]] = {}
    for trial in sorted(study.trials, key=repeats.start):
        groups.setdefault(key(trial), []).append(trial)
    owners: dict[str, set[repeats.Key]] = {}
    for own, trials in groups.items():
        for trial in trials:
            owners.setdefault(given_name(trial), set()).add(own)
    found = []
    for own, trials in groups.items():
        name = given_name(trials[0])
        name = name if len(owners[name]) == 1 else trials[0].name
        setting = with_results.get(own)
        results = setting.trials if setting is not None else ()
        bad = {t.id for t in (setting.failed if setting is not None else ())}
        failed = tuple(t for t in trials if t.id in bad or t.status in ("diverged", "infeasible", "not_learned"))
        costs = setting.costs if setting is not None else np.empty(0)
        records = [r for t in trials if (r := _record(t)) is not None]
        found.append(
            Proposal(own, name, tuple(trials), results, costs, failed, max(records, key=lambda r: r.at, default=None))
        )
    return found


def _record(trial: Trial) -> Record | None:
    """Return the decision in the trial's tag; None if there is none or it is malformed."""
    try:
        data: Any = trial.parsed_fact("gate")
        decision = data["decision"]
        if decision not in get_args(Decision):
            return None
        return Record(decision, str(data["against"]), float(data["at"]), int(data["looks"]))
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


def as_tag(record: Record) -> str:
    """Return the value of the tag that holds the record."""
    return json.dumps(
        {"decision": record.decision, "against": record.against, "at": round(record.at), "looks": record.looks}
    )


def noise_floor(every: Sequence[Proposal]) -> Floor | None:
    """Return the pooled deviation between repeats; None without repeats, or if all repeats are equal."""
    known = difference.pooled([p.costs for p in every if len(p.costs)])
    return None if known is None or not known[0] > 0 else Floor(*known)


def choose(every: Sequence[Proposal], trials: Sequence[Trial]) -> Proposal:
    """Return the setting that these trials stand for: the best repeated one, else the best, else the first."""
    ids = {t.id for t in trials}
    own = [p for p in every if any(t.id in ids for t in p.trials)]
    return min([p for p in own if len(p.costs) > 1] or own, key=lambda p: p.mean)


def default_incumbent(every: Sequence[Proposal], candidate: Proposal) -> tuple[Proposal, str]:
    """Return the incumbent if the user names none, and why: last kept, else best repeated, else first setting with a result."""
    others = [p for p in every if p is not candidate and len(p.costs)]
    if not others:
        raise AdvisorError(f"there is no result to compare {candidate.name!r} with; run the baseline first")
    own = candidate.record
    if own is not None and own.decision == "keep":
        former = [p for p in others if any(t.id == own.against for t in p.trials)]
        if former:
            return former[0], "the setting that it replaced"
    kept = [p for p in others if p.record is not None and p.record.decision == "keep"]
    if kept:
        return max(kept, key=lambda p: p.record.at if p.record is not None else 0.0), "the last kept setting"
    repeated = [p for p in others if len(p.costs) > 1]
    if repeated:
        return min(repeated, key=lambda p: p.mean), "the best repeated setting"
    return others[0], "the first setting"


def numbers(every: Sequence[Proposal], candidate: Proposal) -> tuple[int, int]:
    """Return the candidate's number among all settings but the first, and among the repeated ones by their second run."""
    place = [p.key for p in every].index(candidate.key)
    seconds = sorted((repeats.start(p.trials[1]), p is candidate) for p in every[1:] if len(p.trials) > 1)
    repeat = next((i + 1 for i, (_, own) in enumerate(seconds) if own), len(seconds) + 1)
    return max(place, 1), repeat
