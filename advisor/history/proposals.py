"""Lists the settings (hyperparameters and commit) of a tracking store in the order in which they were first run, and finds the
settings that a user names.

There is one question for each setting: whether to keep the setting. The position of a setting is the number of its question. A
tag on one run of each setting stores the earlier decisions about the setting."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from pydantic import FiniteFloat
from pydantic.dataclasses import dataclass as pydantic_dataclass

from advisor.computed.decision import repeats
from advisor.model.errors import AdvisorError
from advisor.model.space import FloatArray, HyperparameterValue, SettingKey, as_number
from advisor.model.study import Study, Trial
from advisor.model.words import shorten
from advisor.stats import difference
from advisor.stats.sequential import NoiseFloor

Decision = Literal["keep", "discard", "not decided"]
MIN_RELATIVE_DEVIATION = 1e-9
"""Minimum standard deviation between repeats, as a share of the mean cost. A smaller one is due to rounding."""

_MIN_RUN_ID_CHARS = 6

_MIN_COMMIT_CHARS = 7


@pydantic_dataclass(frozen=True)
class GateRecord:
    """The stored decisions about a setting for one metric: the latest answer and, if any, the decision to keep it."""

    decision: Decision
    against: str
    """Id of a run of the incumbent setting."""
    at: FiniteFloat
    """Time of the latest question about the setting, in seconds since 1970."""
    looks: int
    """Number of questions about the setting so far."""
    metric: str
    tags: tuple[str, ...] = ()
    """Names of the tags that distinguish settings, in addition to hyperparameters."""
    kept_at: FiniteFloat | None = None
    """Time of the decision to keep the setting, in seconds since 1970, or None if the setting was never kept. Later questions
    about the setting do not change the time of the decision."""
    kept_against: str = ""
    """Id of a run of the setting that this setting replaced; empty if this setting was never kept."""


@dataclass(frozen=True)
class ProposedSetting:
    """A setting with its runs, sorted by start time."""

    key: SettingKey
    name: str
    """Name of the setting's first run, with a part of the run's id if runs of other settings have the same name."""
    trials: tuple[Trial, ...]
    """All runs of the setting, including failed and running runs."""
    runs_with_result: tuple[Trial, ...]
    """Runs with a result at full training length, one per seed."""
    costs: FloatArray
    """Best cost of each run in `runs_with_result`."""
    failed: tuple[Trial, ...]
    """Failed runs, except those whose seed has a result in a later run."""
    runs_ended_early: tuple[Trial, ...]
    """Runs that ended before full length, such as killed runs, except those whose seed has a result in a later run."""
    gate_record: GateRecord | None

    @property
    def kept_at(self) -> float | None:
        """Time of the decision to keep the setting, or None if the setting was never kept."""
        return self.gate_record.kept_at if self.gate_record is not None else None

    @property
    def mean(self) -> float:
        """Mean cost of the setting's results; infinite if it has none."""
        return float(np.mean(self.costs)) if len(self.costs) else float("inf")

    @property
    def running(self) -> int:
        """Number of runs of the setting that have not ended."""
        return sum(t.status == "running" for t in self.trials)


def setting_key_with_tags(tags: Collection[str] = ()) -> repeats.SettingKeyFunction:
    """Return a function from a trial to its setting's key: hyperparameters, commit and the values of `tags`."""

    def key(trial: Trial) -> SettingKey:
        own = [(f"tag {name}", trial.tags.get(name, "")) for name in sorted(tags) if name not in trial.params]
        return (*repeats.key(trial), ("commit", trial.commit), *own)

    return key


def proposed_settings(study: Study, key: repeats.SettingKeyFunction) -> list[ProposedSetting]:
    """Return all settings of the study, in the order in which they were first run."""
    settings_with_result = {key(s.trials[0]): s for s in repeats.group_into_settings(study, study.trials, key)}
    groups: dict[SettingKey, list[Trial]] = {}
    keys_by_name: dict[str, set[SettingKey]] = {}
    for trial in sorted(study.trials, key=repeats.start_sort_key):
        groups.setdefault(key(trial), []).append(trial)
        keys_by_name.setdefault(logged_run_name(trial), set()).add(key(trial))
    settings = []
    for setting_key, trials in groups.items():
        name = logged_run_name(trials[0])
        name = name if len(keys_by_name[name]) == 1 else trials[0].name
        setting = settings_with_result.get(setting_key)
        results, costs, failed = (
            (setting.trials, setting.costs, setting.failed) if setting is not None else ((), np.empty(0), ())
        )
        failed_ids = {t.id for t in failed}
        all_failed = [t for t in trials if t.id in failed_ids or t.status in ("diverged", "infeasible", "not_learned")]
        short_runs = [t for t in trials if study.ended[t.index] and not study.comparable[t.index] and t not in all_failed]
        records = [r for t in trials if (r := _records_by_metric(t).get(study.spec.objective.metric)) is not None]
        record = max(records, key=lambda r: r.at, default=None)
        last_kept_record = max((r for r in records if r.kept_at is not None), key=lambda r: r.kept_at or 0.0, default=None)
        if record is not None and last_kept_record is not None:  # the latest decision to keep the setting stays valid
            record = replace(record, kept_at=last_kept_record.kept_at, kept_against=last_kept_record.kept_against)
        unreplaced_runs = _drop_superseded_runs(all_failed, results), _drop_superseded_runs(short_runs, results)
        settings.append(ProposedSetting(setting_key, name, tuple(trials), results, costs, *unreplaced_runs, record))
    return settings


def _drop_superseded_runs(trials: Sequence[Trial], results: Sequence[Trial]) -> tuple[Trial, ...]:
    last_result = {t.seed: repeats.start_sort_key(t) for t in results if t.seed is not None}
    return tuple(t for t in trials if t.seed not in last_result or last_result[t.seed] < repeats.start_sort_key(t))


def recorded_tag_names(study: Study) -> set[str]:
    """Return the names of the tags by which earlier questions distinguished settings."""
    return {name for trial in study.trials for record in _records_by_metric(trial).values() for name in record.tags}


def _records_by_metric(trial: Trial) -> dict[str, GateRecord]:
    """Return the records in the trial's tag, keyed by metric; malformed records are skipped."""
    try:
        data: Any = trial.parsed_fact("gate")
    except ValueError:
        return {}
    records = {}
    for metric, entry in data.items() if isinstance(data, dict) else ():
        with suppress(ValueError, TypeError):
            records[metric] = GateRecord(**{**entry, "metric": metric})
    return records


def updated_tag_text(record: GateRecord, old_value: str = "") -> str:
    """Return the new text of the tag: the given record, and the records of other metrics in `old_value`."""
    try:
        old_records = json.loads(old_value)
    except (ValueError, RecursionError):
        old_records = {}
    old_records = old_records if isinstance(old_records, dict) else {}
    others = {metric: entry for metric, entry in old_records.items() if isinstance(entry, dict)}
    entry = {name: value for name, value in asdict(record).items() if name != "metric" and value not in (None, "", ())}
    rounded_times = {name: round(entry[name], 3) for name in ("at", "kept_at") if name in entry}
    return json.dumps({**others, record.metric: {**entry, **rounded_times}})


def noise_floor(settings: Sequence[ProposedSetting]) -> NoiseFloor | None:
    """Return the pooled standard deviation between repeats; None without repeats or if repeats differ only by rounding."""
    costs = [p.costs for p in settings if len(p.costs)]
    noise = difference.pooled_deviation(costs)
    if noise is None or not noise[0] > MIN_RELATIVE_DEVIATION * float(np.mean(np.abs(np.concatenate(costs)))):
        return None
    return NoiseFloor(*noise)


def setting_of_trials(settings: Sequence[ProposedSetting], trials: Sequence[Trial]) -> ProposedSetting:
    """Return the setting of the trials. Prefer settings with repeats, then the best mean."""
    ids = {t.id for t in trials}
    matching_settings = [p for p in settings if any(t.id in ids for t in p.trials)]
    return min([p for p in matching_settings if len(p.costs) > 1] or matching_settings, key=lambda p: p.mean)


def default_incumbent(settings: Sequence[ProposedSetting], candidate: ProposedSetting) -> tuple[ProposedSetting, str]:
    """Return (default incumbent, reason). The default incumbent is the first of these settings that exists: the setting that
    the candidate replaced, the setting that was kept last, the best repeated setting, the first setting with a result."""
    other_settings = [p for p in settings if p is not candidate and len(p.costs)]
    if not other_settings:
        raise AdvisorError(f"there is no result to compare {candidate.name!r} with; run the baseline first")
    record = candidate.gate_record
    if record is not None and record.kept_at is not None:
        replaced_settings = [p for p in other_settings if any(t.id == record.kept_against for t in p.trials)]
        if replaced_settings:
            return replaced_settings[0], "the setting that it replaced"
    kept_settings = [p for p in other_settings if p.kept_at is not None]
    if kept_settings:
        return max(kept_settings, key=lambda p: p.kept_at or 0.0), "the last kept setting"
    repeated_settings = [p for p in other_settings if len(p.costs) > 1]
    if repeated_settings:
        return min(repeated_settings, key=lambda p: p.mean), "the best repeated setting"
    return other_settings[0], "the first setting"


def positions_in_loop(settings: Sequence[ProposedSetting], candidate: ProposedSetting) -> tuple[int, int]:
    """Return the candidate's positions, counted from 1: among all settings, and among repeated settings, which are ordered by
    their second runs. The statistical test divides its error among the positions."""
    place = [p.key for p in settings].index(candidate.key)
    seconds = sorted((repeats.start_sort_key(p.trials[1]), p is candidate) for p in settings if len(p.trials) > 1)
    repeat = next((i + 1 for i, (_, own) in enumerate(seconds) if own), len(seconds) + 1)
    return place + 1, repeat


def describe_setting_differences(candidate: ProposedSetting, incumbent: ProposedSetting) -> tuple[str, ...]:
    """Return the differences between the settings of candidate and incumbent, one phrase for each."""
    own, other = dict(candidate.key), dict(incumbent.key)
    names = dict.fromkeys(n for n in (*own, *other) if own.get(n) != other.get(n))
    return tuple(f"{shorten(n)}: {shorten(other.get(n) or 'none')} → {shorten(own.get(n) or 'none')}" for n in names)


def find_trials(study: Study, text: str, experiment: str, key: repeats.SettingKeyFunction = repeats.key) -> tuple[Trial, ...]:
    """Return the trials that `text` names by a run's name or id (including repeats), by a commit, or by values NAME=VALUE,...

    key: function that returns the key of a trial's setting; trials with equal keys are repeats of one setting. Raises
    AdvisorError if no trial matches, or if the text names trials of different settings."""
    named = [t for t in study.trials if text in (t.name, t.id, logged_run_name(t))]
    if not named and len(text) >= _MIN_RUN_ID_CHARS:
        named = [t for t in study.trials if t.id.startswith(text)]
    if len({key(t) for t in named}) > 1:
        raise AdvisorError(
            f"{len(named)} trials of {experiment!r} are called {text!r} and differ in their settings; pass an id"
        )
    if named:
        return tuple(t for t in study.trials if key(t) == key(named[0]))
    if matching := tuple(t for t in study.trials if len(text) >= _MIN_COMMIT_CHARS and t.commit.startswith(text)):
        return matching
    values = parse_filters(text)
    if not values:
        examples = ", ".join(t.name for t in study.trials[:5])
        raise AdvisorError(
            f"experiment {experiment!r} has no trial {text!r}; its trials are {examples}, ...; you can also give NAME=VALUE"
        )
    for name in values:
        if not any(name in t.params or name in t.tags for t in study.trials):
            known = ", ".join(sorted({n for t in study.trials for n in (*t.params, *t.tags)})[:12])
            raise AdvisorError(f"no trial of {experiment!r} has a hyperparameter {name!r}; they have: {known}")
    matching = tuple(
        t for t in study.trials if all(matches_filter_value(t.params.get(n, t.tags.get(n)), v) for n, v in values.items())
    )
    if not matching:
        raise AdvisorError(f"no trial of {experiment!r} has {text}")
    return matching


def parse_filters(text: str) -> Mapping[str, str]:
    """Return {name: value} for a text of the form NAME=VALUE,...; empty if the text does not have this form."""
    words = [word.partition("=") for word in text.split(",")]
    return {name: value for name, _, value in words} if all(equals for _, equals, _ in words) else {}


def logged_run_name(trial: Trial) -> str:
    """Return the user's name of the run, without the part of the id that we append to equal names."""
    name, _, suffix = trial.name.rpartition(" (")
    return name if suffix.endswith(")") and trial.id.startswith(suffix[:-1]) else trial.name


def matches_filter_value(value: HyperparameterValue | None, text: str) -> bool:
    """Return True if `text` is the given value in a filter NAME=VALUE. Numbers are compared as numbers, and all other values as
    text, without regard to case."""
    if value is None:
        return False
    number = as_number(text)
    if isinstance(value, bool) or math.isnan(number):
        return str(value).lower() == text.lower()
    return math.isclose(as_number(value), number, rel_tol=1e-6)
