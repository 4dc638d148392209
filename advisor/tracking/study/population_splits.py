"""Splits the runs of one experiment into separate populations, by evidence that the trials of one search would rarely show."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence

from advisor import contract
from advisor.model.space import words_of_name
from advisor.model.words import clean, listed, shorten
from advisor.tracking.runs import Experiment, Run
from advisor.tracking.study import declared, inference
from advisor.tracking.study.probes import PARENT_RUN_TAG

_MAX_P_VALUE = 0.01
"""Maximum probability that runs of one search look like separate populations by chance."""
_MIN_SAMPLED_NUMBER_DIGITS = 6
"""Minimum significant digits of a number that a sampler drew; people type fewer."""
_TASK_WORDS = frozenset("dataset datasets corpus task env environment benchmark problem".split())
_TASK_TAG_WORDS = frozenset("dataset datasets corpus task benchmark".split())
"""Last words of tags that name a task; "environment" is left out, which often names where a run was started."""
_MODEL_WORDS = frozenset("model arch architecture backbone network net encoder".split())
_NAME_SUFFIX_WORDS = frozenset("name id type".split())

RunGroups = dict[str, list[int]]
"""Indices of the runs of each group, by its title, such as "dataset = cifar10"."""


def split_runs(experiment: Experiment, chosen: Sequence[int]) -> RunGroups | None:
    """Separate the chosen runs into groups by the first sufficient evidence, if any."""
    if len(chosen) < 2:
        return None
    tests = (_split_by_task, _split_by_sampler, _split_by_parent, _split_by_names, _split_by_model, _split_by_digits)
    splits = (test(experiment, chosen) for test in tests)
    return next((groups for groups in splits if groups is not None and len(groups) > 1), None)


def _split_by_task(experiment: Experiment, chosen: Sequence[int]) -> RunGroups | None:
    """Separate runs whose objectives cannot be compared."""
    names = _grouping_names(experiment, chosen, _TASK_WORDS)
    return _group_by_value(experiment, chosen, names[0]) if names else None


def _split_by_model(experiment: Experiment, chosen: Sequence[int]) -> RunGroups | None:
    """Separate runs of different models, unless one comparison searched them, at the same time and in the same ranges."""
    for name in _grouping_names(experiment, chosen, _MODEL_WORDS):
        groups = _group_by_value(experiment, chosen, name)
        is_repeated = 2 * len(groups) <= sum(map(len, groups.values()))
        if is_repeated and not _is_partial_grid(experiment, groups, name) and _are_groups_separate(experiment, groups):
            return groups
    return None


def _split_by_sampler(experiment: Experiment, chosen: Sequence[int]) -> RunGroups | None:
    """Separate the trials of a tuner. An interrupted trial lacks the tuner's tags, which are written at the end."""
    tuner_runs = {i for i in chosen if declared.has_tuner_tags(experiment.runs[i])}
    if not tuner_runs:
        return None
    trials = tuner_runs | {i for i in chosen if experiment.runs[i].status != "FINISHED"}
    return _group_by_membership(chosen, "a tuner's trials", "without the tuner", trials)


def _split_by_parent(experiment: Experiment, chosen: Sequence[int]) -> RunGroups | None:
    has_parent = {i for i in chosen if PARENT_RUN_TAG in experiment.runs[i].tags}
    return _group_by_membership(chosen, "runs of a sweep", "without a parent run", has_parent)


def _split_by_digits(experiment: Experiment, chosen: Sequence[int]) -> RunGroups | None:
    """Separate runs with drawn numbers from runs with typed ones, if all of one kind precede the other kind."""
    sampled = {i for i in chosen if _has_sampled_numbers(experiment.runs[i])}
    groups = _group_by_membership(chosen, "drawn at random", "set by hand", sampled)
    if min(map(len, groups.values())) < 2:
        return None
    return groups if _are_ranges_disjoint(_start_times_of_groups(experiment, groups), tests=1) else None


def _split_by_names(experiment: Experiment, chosen: Sequence[int]) -> RunGroups | None:
    """Separate runs that share at most half of their parameter names, unless the value of one parameter explains this. A failed
    run may lack parameters, so it joins the group with which it shares the most."""
    raw = [experiment.runs[i].params for i in chosen]
    if inference.logged_same_parameters(raw):
        return None
    parsed = inference.parse_params(raw)
    names = {i: frozenset(params) for i, params in zip(chosen, parsed, strict=True)}
    name_sets = {n for i, n in names.items() if n and experiment.runs[i].status == "FINISHED"}
    clusters = _group_name_sets(name_sets)
    if len(clusters) < 2 or _one_parameter_explains([p for i, p in zip(chosen, parsed, strict=True) if names[i] in name_sets]):
        return None
    groups: RunGroups = {}
    for i in chosen:
        cluster = max(clusters, key=lambda p: max(_name_overlap(names[i], n) for n in p))
        own = frozenset.intersection(*cluster) - frozenset().union(*(n for p in clusters if p is not cluster for n in p))
        title = f"with {listed(map(clean, sorted(own)))}" if own else "with fewer parameters"
        groups.setdefault(title, []).append(i)
    return groups


def _group_name_sets(sets: Iterable[frozenset[str]]) -> list[set[frozenset[str]]]:
    """Group the sets that share at least half of their names."""
    clusters: list[set[frozenset[str]]] = []
    for names in sorted(sets, key=sorted):
        overlapping = [part for part in clusters if any(_name_overlap(names, n) >= 0.5 for n in part)]
        clusters = [part for part in clusters if part not in overlapping] + [{names}.union(*overlapping)]
    return clusters


def _name_overlap(names: frozenset[str], others: frozenset[str]) -> float:
    return len(names & others) / max(len(names | others), 1)


def _grouping_names(experiment: Experiment, chosen: Sequence[int], nouns: frozenset[str]) -> list[str]:
    """Return the parameters, or the user's tags, that end with one of the nouns and have several different words as values."""
    grouping_names = []
    runs = [experiment.runs[i] for i in chosen]
    params = {n for run in runs for n in run.params}
    tags = {n for run in runs for n in run.tags if not n.startswith((contract.TAG_PREFIX, "mlflow."))} - params
    for name in [*sorted(params), *sorted(tags)]:
        words = [w for w in words_of_name(name) if w not in _NAME_SUFFIX_WORDS] or words_of_name(name)
        known_nouns = nouns & _TASK_TAG_WORDS if name in tags else nouns
        marks = words[-1:] and (words[-1] in known_nouns or (nouns is _TASK_WORDS and name in params and words == ["data"]))
        values = {_param_or_tag_text(run, name) for run in runs} if marks else set()
        if len(values) > 1 and all(v is None or re.search("[A-Za-z]", v) for v in values):
            grouping_names.append(name)
    return grouping_names


def _param_or_tag_text(run: Run, name: str) -> str | None:
    value = run.params.get(name, run.tags.get(name))
    return None if value is None else os.path.basename(value.strip().rstrip("/")) or value


def _group_by_value(experiment: Experiment, chosen: Sequence[int], name: str) -> RunGroups:
    groups: RunGroups = {}
    for i in chosen:
        value = _param_or_tag_text(experiment.runs[i], name)
        groups.setdefault(f"{clean(name)} = {shorten(value)}" if value is not None else f"without {clean(name)}", []).append(i)
    return groups


def _group_by_membership(chosen: Sequence[int], inside: str, outside: str, members: set[int]) -> RunGroups:
    groups: RunGroups = {}
    for i in chosen:
        groups.setdefault(inside if i in members else outside, []).append(i)
    return groups


def _has_sampled_numbers(run: Run) -> bool:
    number_matches = (re.fullmatch(r"[-+]?(\d*)\.(\d+)(?:[eE][-+]?\d+)?", text.strip()) for text in run.params.values())
    return any(n and len((n[1] + n[2]).strip("0")) >= _MIN_SAMPLED_NUMBER_DIGITS for n in number_matches)


def _one_parameter_explains(parsed: Sequence[Mapping[str, object]]) -> bool:
    """Return whether one parameter that all trials have determines which others a trial has."""
    shared_names = set.intersection(*(set(p) for p in parsed))
    for name in shared_names:
        values: dict[object, set[frozenset[str]]] = {}
        for params in parsed:
            values.setdefault(params[name], set()).add(frozenset(params))
        if 2 * len(values) <= len(parsed) and all(len(names) == 1 for names in values.values()):
            return True
    return False


def _is_partial_grid(experiment: Experiment, groups: RunGroups, name: str) -> bool:
    """Return whether at least half of the settings in the smaller groups were also tried in the largest group."""

    def settings(members: Iterable[int]) -> set[frozenset[tuple[str, object]]]:
        parsed_params = inference.parse_params([experiment.runs[i].params for i in members])
        return {frozenset((k, v) for k, v in p.items() if k != name) for p in parsed_params}

    largest, *rest = sorted(groups.values(), key=len, reverse=True)
    smaller, known = settings(i for members in rest for i in members), settings(largest)
    return 2 * len(smaller & known) >= len(smaller)


def _are_groups_separate(experiment: Experiment, groups: RunGroups) -> bool:
    """Return whether the groups are separate in time or in the range of a hyperparameter, which random groups rarely are."""
    columns = [_start_times_of_groups(experiment, groups)]
    members = [i for g in groups.values() for i in g]
    params_by_run = dict(zip(members, inference.parse_params([experiment.runs[i].params for i in members]), strict=True))
    for name in sorted({n for p in params_by_run.values() for n in p}):
        values = [[v for i in g if isinstance(v := params_by_run[i].get(name), float)] for g in groups.values()]
        if all(values):
            columns.append(values)
    return any(_are_ranges_disjoint(column, tests=len(columns)) for column in columns)


def _start_times_of_groups(experiment: Experiment, groups: RunGroups) -> list[list[float]]:
    return [[s for i in g if (s := experiment.runs[i].started) is not None] for g in groups.values()]


def _are_ranges_disjoint(groups: Sequence[Sequence[float]], *, tests: int) -> bool:
    sorted_groups = sorted((g for g in groups if g), key=min)
    if len(sorted_groups) < max(2, len(groups)) or any(max(a) >= min(b) for a, b in itertools.pairwise(sorted_groups)):
        return False
    log_orders = math.lgamma(sum(map(len, sorted_groups)) + 1) - sum(math.lgamma(len(g) + 1) for g in sorted_groups)
    return math.lgamma(len(sorted_groups) + 1) - log_orders <= math.log(_MAX_P_VALUE / tests)
