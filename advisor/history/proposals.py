"""Lists the settings (hyperparameters and commit) of a tracking store in the order in which they were first run.

The position of a setting in this list is also the number of the question whether to keep the setting, so the number need not be
stored. A setting that was never run cannot be kept, so it has no position. A tag on one run of each setting stores the earlier
decisions about the setting.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from advisor.computed.decision import repeats
from advisor.history.selection import logged_run_name
from advisor.model.errors import AdvisorError
from advisor.model.space import FloatArray, SettingKey
from advisor.model.study import Study, Trial
from advisor.model.words import shorten
from advisor.stats import difference
from advisor.stats.sequential import NoiseFloor

Decision = Literal["keep", "discard", "not decided"]
MIN_RELATIVE_DEVIATION = 1e-9
"""Minimum standard deviation between repeats, as a share of the mean cost. A smaller standard deviation is attributed to
rounding. Our choice."""


@dataclass(frozen=True, slots=True)
class GateRecord:
    """The stored decisions about a setting for one metric: the latest answer and, if the setting was ever kept, that decision."""

    decision: Decision
    against: str
    """Id of a run of the incumbent setting."""
    at: float
    """Time of the latest question about the setting, in seconds since 1970."""
    looks: int
    """Number of questions about the setting so far."""
    metric: str
    tags: tuple[str, ...] = ()
    """Names of the tags that distinguish settings, in addition to hyperparameters."""
    kept_at: float | None = None
    """Time of the decision to keep the setting, in seconds since 1970; None if it was never kept. Later questions about the
    setting do not change the time of the decision."""
    kept_against: str = ""
    """Id of a run of the setting that this setting replaced; empty if this setting was never kept."""


@dataclass(frozen=True)
class ProposedSetting:
    """A setting with its runs, sorted by start time."""

    key: SettingKey
    name: str
    """Name of the setting's runs; the name of its first run if runs of other settings have the same name."""
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
        """Time of the decision to keep the setting; None if it was never kept."""
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
    """Return a function from a trial to the key of its setting, which consists of hyperparameters, commit and the values of
    `tags`."""

    def key(trial: Trial) -> SettingKey:
        own = [(f"tag {name}", trial.tags.get(name, "")) for name in sorted(tags) if name not in trial.params]
        return (*repeats.key(trial), ("commit", trial.commit), *own)

    return key


def proposed_settings(study: Study, key: repeats.SettingKeyFunction) -> list[ProposedSetting]:
    """Return all settings of the study, in the order in which they were first run."""
    with_results = {key(s.trials[0]): s for s in repeats.group_into_settings(study, study.trials, key)}
    groups: dict[SettingKey, list[Trial]] = {}
    for trial in sorted(study.trials, key=repeats.start_sort_key):
        groups.setdefault(key(trial), []).append(trial)
    owners: dict[str, set[SettingKey]] = {}
    for setting_key, trials in groups.items():
        for trial in trials:
            owners.setdefault(logged_run_name(trial), set()).add(setting_key)
    settings = []
    for setting_key, trials in groups.items():
        name = logged_run_name(trials[0])
        name = name if len(owners[name]) == 1 else trials[0].name
        setting = with_results.get(setting_key)
        results = setting.trials if setting is not None else ()
        failed_ids = {t.id for t in (setting.failed if setting is not None else ())}
        failed_trials = [t for t in trials if t.id in failed_ids or t.status in ("diverged", "infeasible", "not_learned")]
        short = [t for t in trials if study.ended[t.index] and not study.comparable[t.index] and t not in failed_trials]
        costs = setting.costs if setting is not None else np.empty(0)
        records = [r for t in trials if (r := _records_by_metric(t).get(study.spec.objective.metric)) is not None]
        not_replaced = _drop_superseded_runs(failed_trials, results), _drop_superseded_runs(short, results)
        settings.append(
            ProposedSetting(setting_key, name, tuple(trials), results, costs, *not_replaced, _latest_record(records))
        )
    return settings


def _drop_superseded_runs(trials: Sequence[Trial], results: Sequence[Trial]) -> tuple[Trial, ...]:
    """Return the trials for which no later trial with the same seed has a result."""
    last = {t.seed: repeats.start_sort_key(t) for t in results if t.seed is not None}
    return tuple(t for t in trials if t.seed not in last or last[t.seed] < repeats.start_sort_key(t))


def recorded_tag_names(study: Study) -> set[str]:
    """Return the names of the tags by which earlier questions distinguished settings. If these tags were ignored, settings that
    were kept would merge with other settings."""
    return {name for trial in study.trials for record in _records_by_metric(trial).values() for name in record.tags}


def _records_by_metric(trial: Trial) -> dict[str, GateRecord]:
    """Return the records in the trial's tag, keyed by metric; malformed records are skipped."""
    try:
        data: Any = trial.parsed_fact("gate")
    except ValueError:
        return {}
    items = data.items() if isinstance(data, dict) else ()
    return {metric: record for metric, entry in items if (record := _parse_record(metric, entry)) is not None}


def _parse_record(metric: str, entry: Any) -> GateRecord | None:
    try:
        decision, kept_at = entry["decision"], entry.get("kept_at")
        times = [float(t) for t in (entry["at"], kept_at) if t is not None]
        if decision not in get_args(Decision) or not np.isfinite(times).all():
            return None
        tags = tuple(str(name) for name in entry.get("tags", ()))
        own = (str(entry["against"]), times[0], int(entry["looks"]), metric, tags)
        return GateRecord(decision, *own, times[1] if kept_at is not None else None, str(entry.get("kept_against", "")))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None


def _latest_record(records: Sequence[GateRecord]) -> GateRecord | None:
    """Return the latest record of a setting, supplemented by the latest decision to keep the setting."""
    if not records:
        return None
    kept = max((r for r in records if r.kept_at is not None), key=lambda r: r.kept_at or 0.0, default=None)
    latest = max(records, key=lambda r: r.at)
    return latest if kept is None else replace(latest, kept_at=kept.kept_at, kept_against=kept.kept_against)


def updated_tag_text(record: GateRecord, old_value: str = "") -> str:
    """Return the new text of the tag: the given record, and the records of other metrics in `old_value`."""
    try:
        old_records = json.loads(old_value)
    except (ValueError, RecursionError):
        old_records = {}
    others = {m: entry for m, entry in old_records.items() if isinstance(entry, dict)} if isinstance(old_records, dict) else {}
    entry = {name: value for name, value in asdict(record).items() if name != "metric" and value not in (None, "", ())}
    times = {name: round(entry[name], 3) for name in ("at", "kept_at") if name in entry}
    return json.dumps({**others, record.metric: {**entry, **times}})


def noise_floor(settings: Sequence[ProposedSetting]) -> NoiseFloor | None:
    """Return the standard deviation between repeats of a setting, pooled over all settings; None if there are no repeats or if
    repeats differ only by rounding."""
    costs = [p.costs for p in settings if len(p.costs)]
    noise = difference.pooled_deviation(costs)
    if noise is None or not noise[0] > MIN_RELATIVE_DEVIATION * float(np.mean(np.abs(np.concatenate(costs)))):
        return None
    return NoiseFloor(*noise)


def setting_of_trials(settings: Sequence[ProposedSetting], trials: Sequence[Trial]) -> ProposedSetting:
    """Return the setting to which the trials belong. If the trials belong to several settings, prefer settings with repeats,
    then settings with better results."""
    ids = {t.id for t in trials}
    matching = [p for p in settings if any(t.id in ids for t in p.trials)]
    return min([p for p in matching if len(p.costs) > 1] or matching, key=lambda p: p.mean)


def default_incumbent(settings: Sequence[ProposedSetting], candidate: ProposedSetting) -> tuple[ProposedSetting, str]:
    """Return (default incumbent, reason): the setting that was kept last, else the best repeated setting, else the first
    setting with a result.

    If the candidate was kept before, the setting that the candidate replaced is the default incumbent.
    """
    others = [p for p in settings if p is not candidate and len(p.costs)]
    if not others:
        raise AdvisorError(f"there is no result to compare {candidate.name!r} with; run the baseline first")
    record = candidate.gate_record
    if record is not None and record.kept_at is not None:
        replaced = [p for p in others if any(t.id == record.kept_against for t in p.trials)]
        if replaced:
            return replaced[0], "the setting that it replaced"
    kept_proposals = [p for p in others if p.kept_at is not None]
    if kept_proposals:
        return max(kept_proposals, key=lambda p: p.kept_at or 0.0), "the last kept setting"
    repeated = [p for p in others if len(p.costs) > 1]
    if repeated:
        return min(repeated, key=lambda p: p.mean), "the best repeated setting"
    return others[0], "the first setting"


def positions_in_loop(settings: Sequence[ProposedSetting], candidate: ProposedSetting) -> tuple[int, int]:
    """Return the candidate's position among all settings and its position among repeated settings, both counted from 1.
    Repeated settings are ordered by their second runs.

    The statistical test needs a different number for each setting, because it divides the permitted error among the numbers by
    weights that sum to 1.
    """
    place = [p.key for p in settings].index(candidate.key)
    seconds = sorted((repeats.start_sort_key(p.trials[1]), p is candidate) for p in settings if len(p.trials) > 1)
    repeat = next((i + 1 for i, (_, own) in enumerate(seconds) if own), len(seconds) + 1)
    return place + 1, repeat


def describe_setting_differences(candidate: ProposedSetting, incumbent: ProposedSetting) -> tuple[str, ...]:
    """Return the differences between the settings of candidate and incumbent, one phrase for each."""
    own, other = dict(candidate.key), dict(incumbent.key)
    names = [n for n in (*own, *other) if own.get(n) != other.get(n)]
    return tuple(
        f"{shorten(n)}: {shorten(other.get(n) or 'none')} → {shorten(own.get(n) or 'none')}" for n in dict.fromkeys(names)
    )
