"""Separates populations: runs in one experiment that do not form one study, such as hand runs and a sweep, or two datasets.

The largest population is analysed. Runs are separated only by evidence that the trials of one search would rarely show;
`_SPLITS` lists the kinds of evidence.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from advisor import contract
from advisor.model.errors import AdvisorError
from advisor.model.reading import Decision
from advisor.model.space import equal_values, words_of
from advisor.model.words import clean, count, listed, shorten
from advisor.tracking.runs import Experiment, Run
from advisor.tracking.study import declared, inference
from advisor.tracking.study.probes import select_runs
from advisor.tracking.study.run_filters import filter_for

_PARENT = "mlflow.parentRunId"
_LEVEL = 0.01
"""Maximum probability with which runs of one search would look like separate populations by chance, for each test."""
_MIN_RUNS = 3
"""Minimum runs of the largest population; with fewer, the experiment is not a study."""
_MIN_DIGITS = 6
"""Minimum significant digits of a number that a sampler drew; people type fewer digits."""
_MAX_LISTED = 4
"""Maximum number of other populations that a message lists."""
_TASKS = frozenset("dataset datasets corpus task env environment benchmark problem".split())
_TASK_TAGS = frozenset("dataset datasets corpus task benchmark".split())
"""Nouns in names of tags; "environment" is missing because such a tag often names the machine that started the run."""
_MODELS = frozenset("model arch architecture backbone network net encoder".split())
_NAMED = frozenset("name id type".split())

Groups = dict[str, list[int]]
"""Title of each group, such as "dataset = cifar10", and the indices of its runs."""


@dataclass(frozen=True, slots=True)
class Population:
    """The runs to analyse."""

    experiment: Experiment
    decisions: tuple[Decision, ...] = ()
    warnings: tuple[str, ...] = ()


def select_population(
    experiment: Experiment, selection: str | None, *, objective: str | None = None, declared_study: bool = False
) -> Population:
    """Return the runs to analyse, and the decisions about the other runs.

    selection: "all", `PARAMETER=VALUE`, or None for the largest population. objective: only runs that logged this metric count as
    members. declared_study: True if a study file declares the space; only test runs are then separated. Raises AdvisorError if
    no run matches `selection`, or if no population has enough runs.
    """
    if selection == "all":
        return Population(experiment)
    if selection is None and declared_study:
        return _without_test_runs(experiment)
    if selection is not None:
        return _runs_with_value(experiment, selection)
    chosen, others = _members(experiment), []
    title = ""
    while (groups := _split_by_evidence(experiment, chosen)) is not None:
        largest = max(groups, key=lambda t: (_count_members(experiment, groups[t], objective), max(groups[t])))
        others += [(t, members) for t, members in groups.items() if t != largest]
        chosen, title = groups[largest], " and ".join(filter(None, (title, largest)))
    if not others:
        return Population(experiment)
    if len(chosen) < _MIN_RUNS:
        raise AdvisorError(_no_study_message(experiment, [(title, chosen), *others]))
    total = len(chosen) + sum(len(members) for _, members in others)
    # Titles such as "a sweep" or "cnn" are no filters, so each group is listed with a filter that selects exactly the group's runs.
    listed = _list_groups(experiment, sorted(others, key=lambda o: -len(o[1])))
    decision = Decision(
        topic="population",
        text=f"The experiment mixes {len(others) + 1} kinds of runs, which do not form one study. We analyse the largest: "
        f"{len(chosen):,} of {total:,} runs, {title}. The others: {listed}.",
        overrule="--population all",
        parameters=_selecting_parameters(experiment, chosen),
    )
    warning = f"Only {len(chosen):,} of {total:,} runs are analysed: {title}. The others are of another kind."
    return Population(_select_members(experiment, chosen), (decision,), (warning,))


def _without_test_runs(experiment: Experiment) -> Population:
    """Leave out runs that `advisor run` did not start, if they planned another number of steps than all trials that it started."""
    planned = [run.tags.get(contract.TAG_MAX_TRAIN_STEPS) for run in experiment.runs]
    launched = [contract.TAG_TRIAL in run.tags for run in experiment.runs]
    lengths = {steps for steps, ours in zip(planned, launched, strict=True) if ours and steps is not None}
    keep = [ours or steps is None or steps in lengths for steps, ours in zip(planned, launched, strict=True)]
    out = len(keep) - sum(keep)
    if not out or sum(launched) < _MIN_RUNS or not lengths:
        return Population(experiment)
    decision = Decision(
        topic="population",
        text=f"{count(out, 'run')} of {len(keep):,} {'was' if out == 1 else 'were'} started by hand and planned another number of "
        "steps than the study's trials. We leave them out as test runs.",
        overrule="--population all",
    )
    return Population(select_runs(experiment, np.array(keep, dtype=np.bool_)), (decision,))


def _members(experiment: Experiment) -> list[int]:
    """Return the indices of the runs to separate: runs that have parameters and are not parents of other runs."""
    parents = {run.tags.get(_PARENT) for run in experiment.runs}
    return [i for i, run in enumerate(experiment.runs) if run.params and run.id not in parents]


def _count_members(experiment: Experiment, members: Sequence[int], objective: str | None) -> int:
    if objective is None or objective not in experiment.points:
        return len(members)
    return len(set(members) & set(experiment.points[objective].runs.tolist()))


def _select_members(experiment: Experiment, chosen: Sequence[int]) -> Experiment:
    """Return the experiment with the chosen runs, their parents, and runs without parameters."""
    members = set(chosen)
    parents = {experiment.runs[i].tags.get(_PARENT) for i in members}
    all_parents = {run.tags.get(_PARENT) for run in experiment.runs}
    keep = [
        i in members or run.id in parents or (not run.params and run.id not in all_parents)
        for i, run in enumerate(experiment.runs)
    ]
    return select_runs(experiment, np.array(keep, dtype=np.bool_))


def _runs_with_value(experiment: Experiment, selection: str) -> Population:
    """Return the runs whose parameter has the value in `selection`, PARAMETER=VALUE."""
    name, equals, text = (part.strip() for part in selection.partition("="))
    values = Counter(run.params[name] for run in experiment.runs if name in run.params)
    if not equals or not values:
        raise AdvisorError(f"--population {selection!r} is neither all nor PARAM=VALUE of a parameter that runs logged")
    value = inference.parse_value(text)
    chosen = [
        i
        for i, run in enumerate(experiment.runs)
        if (logged := run.params.get(name)) is not None
        and (
            logged == text
            or (value is not None and (v := inference.parse_value(logged)) is not None and equal_values(v, value))
        )
    ]
    if not chosen:
        used = ", ".join(shorten(v) for v, _ in values.most_common(_MAX_LISTED))
        raise AdvisorError(f"no run has {name} = {text}; values of the most runs: {used}")
    decision = Decision(
        topic="population",
        text=f"{count(len(chosen), 'run')} of {len(experiment.runs):,} with {clean(name)} = {clean(text)} are analysed.",
        overrule="--population all",
        parameters=_selecting_parameters(experiment, chosen),
    )
    return Population(_select_members(experiment, chosen), (decision,))


def _selecting_parameters(experiment: Experiment, chosen: Sequence[int]) -> tuple[str, ...]:
    """Return the parameters that have one value in all chosen runs and different values in other runs."""
    inside = set(chosen)
    params = [experiment.runs[i].params for i in sorted(inside)]
    outside = [run.params for i, run in enumerate(experiment.runs) if i not in inside]
    constant = (n for n, value in params[0].items() if all(p.get(n) == value for p in params))
    return tuple(sorted(n for n in constant if any(p.get(n, params[0][n]) != params[0][n] for p in outside)))


def _list_groups(experiment: Experiment, others: Sequence[tuple[str, Sequence[int]]]) -> str:
    parts = [_describe(experiment, title, members) for title, members in others[:_MAX_LISTED]]
    more = len(others) - _MAX_LISTED
    return "; ".join([*parts, *([f"{more} more kinds"] if more > 0 else [])])


def _describe(experiment: Experiment, title: str, members: Sequence[int]) -> str:
    words = filter_for(experiment, members)
    return f"{title}, {count(len(members), 'run')}" + (f', `--filter "{words}"`' if words else "")


def _no_study_message(experiment: Experiment, groups: Sequence[tuple[str, Sequence[int]]]) -> str:
    most = max(len(members) for _, members in groups)
    return (
        f"experiment {experiment.name!r} is not one study: it mixes {len(groups)} kinds of runs with at most "
        f"{count(most, 'run')} each; analyze one kind with a filter "
        f"({_list_groups(experiment, groups)}), or all with --population all"
    )


# --- evidence -------------------------------------------------------------------------------------------------------------------


def _split_by_evidence(experiment: Experiment, chosen: Sequence[int]) -> Groups | None:
    """Return the groups of the chosen runs by the first evidence that separates them; None if nothing does."""
    if len(chosen) < 2:
        return None
    for test in _SPLITS:
        groups = test(experiment, chosen)
        if groups is not None and len(groups) > 1:
            return groups
    return None


def _split_by_task(experiment: Experiment, chosen: Sequence[int]) -> Groups | None:
    """Separate runs on different datasets or tasks, because their objectives cannot be compared."""
    for name in _marker_parameters(experiment, chosen, _TASKS):
        return _split_by_value(experiment, chosen, name)
    return None


def _split_by_model(experiment: Experiment, chosen: Sequence[int]) -> Groups | None:
    """Separate runs of different models, unless they form one comparison: trained at the same time and searched in the same
    ranges.
    """
    for name in _marker_parameters(experiment, chosen, _MODELS):
        groups = _split_by_value(experiment, chosen, name)
        sizes = [len(g) for g in groups.values()]
        if (
            2 * len(sizes) <= sum(sizes)
            and not _is_grid(experiment, groups, name)
            and _are_separate(experiment, groups)
        ):
            return groups
    return None


def _split_by_sampler(experiment: Experiment, chosen: Sequence[int]) -> Groups | None:
    """Separate a tuner's trials from other runs. An interrupted trial lacks the tuner's tags, which are written at its end."""
    runs = experiment.runs
    tagged = [i for i in chosen if declared.has_tuner_tags(runs[i])]
    if not tagged:
        return None
    return _two_groups(
        chosen,
        "a tuner's trials",
        "without the tuner",
        lambda i: declared.has_tuner_tags(runs[i]) or runs[i].status != "FINISHED",
    )


def _split_by_parent(experiment: Experiment, chosen: Sequence[int]) -> Groups | None:
    """Separate runs of a sweep, which have a parent run, from runs without a parent."""
    return _two_groups(chosen, "runs of a sweep", "without a parent run", lambda i: _PARENT in experiment.runs[i].tags)


def _split_by_digits(experiment: Experiment, chosen: Sequence[int]) -> Groups | None:
    """Separate runs with numbers from a sampler from runs with numbers typed by a person, if one group follows the other
    in time.
    """
    groups = _two_groups(chosen, "drawn at random", "set by hand", lambda i: _is_drawn(experiment.runs[i]))
    if groups is None or min(map(len, groups.values())) < 2:
        return None
    return groups if _are_disjoint(_start_times(experiment, groups), tests=1) else None


def _split_by_names(experiment: Experiment, chosen: Sequence[int]) -> Groups | None:
    """Separate runs that share at most half of their parameters' names, unless a parameter's value explains the difference.

    A failed run may have logged only some of its parameters, so it is assigned to the kind of runs that it resembles most.
    """
    raw = [experiment.runs[i].params for i in chosen]
    if inference.logged_same_parameters(raw):
        return None
    parsed = inference.parse_params(raw)
    names = {i: frozenset(params) for i, params in zip(chosen, parsed, strict=True)}
    finished = {n for i, n in names.items() if n and experiment.runs[i].status == "FINISHED"}
    parts = _group_name_sets(finished)
    if len(parts) < 2 or _one_parameter_explains(
        [p for i, p in zip(chosen, parsed, strict=True) if names[i] in finished]
    ):
        return None
    groups: Groups = {}
    for i in chosen:
        part = max(parts, key=lambda p: max(_share_of_common_names(names[i], n) for n in p))
        own = frozenset.intersection(*part) - frozenset().union(*(n for p in parts if p is not part for n in p))
        title = f"with {listed(map(clean, sorted(own)))}" if own else "with fewer parameters"
        groups.setdefault(title, []).append(i)
    return groups


def _group_name_sets(sets: Iterable[frozenset[str]]) -> list[set[frozenset[str]]]:
    """Group the sets of names: two sets that share at least half of their names are in one group."""
    parts: list[set[frozenset[str]]] = []
    for names in sorted(sets, key=sorted):
        near = [part for part in parts if any(_share_of_common_names(names, n) >= 0.5 for n in part)]
        parts = [part for part in parts if part not in near] + [{names}.union(*near)]
    return parts


def _share_of_common_names(names: frozenset[str], others: frozenset[str]) -> float:
    """Return the share of names that two sets have in common."""
    return len(names & others) / max(len(names | others), 1)


_SPLITS: tuple[Callable[[Experiment, Sequence[int]], Groups | None], ...] = (
    _split_by_task,
    _split_by_sampler,
    _split_by_parent,
    _split_by_names,
    _split_by_model,
    _split_by_digits,
)


def _marker_parameters(experiment: Experiment, chosen: Sequence[int], nouns: frozenset[str]) -> list[str]:
    """Return the parameters, or the user's tags, whose names end with one of the nouns and that have several words as values."""
    found = []
    runs = [experiment.runs[i] for i in chosen]
    params = {n for run in runs for n in run.params}
    tags = {n for run in runs for n in run.tags if not n.startswith((contract.TAG_PREFIX, "mlflow."))} - params
    for name in [*sorted(params), *sorted(tags)]:
        words = [w for w in words_of(name) if w not in _NAMED] or words_of(name)
        known = nouns & _TASK_TAGS if name in tags else nouns
        marks = words[-1:] and (words[-1] in known or (nouns is _TASKS and name in params and words == ["data"]))
        values = {_value_without_folder(run, name) for run in runs} if marks else set()
        if len(values) > 1 and all(v is None or re.search("[A-Za-z]", v) for v in values):
            found.append(name)
    return found


def _value_without_folder(run: Run, name: str) -> str | None:
    """Return the value of a parameter or tag, without the folders of a path."""
    value = run.params.get(name, run.tags.get(name))
    return None if value is None else os.path.basename(value.strip().rstrip("/")) or value


def _split_by_value(experiment: Experiment, chosen: Sequence[int], name: str) -> Groups:
    groups: Groups = {}
    for i in chosen:
        value = _value_without_folder(experiment.runs[i], name)
        groups.setdefault(
            f"{clean(name)} = {shorten(value)}" if value is not None else f"without {clean(name)}", []
        ).append(i)
    return groups


def _two_groups(chosen: Sequence[int], yes: str, no: str, test: Callable[[int], bool]) -> Groups | None:
    groups: Groups = {}
    for i in chosen:
        groups.setdefault(yes if test(i) else no, []).append(i)
    return groups if len(groups) > 1 else None


def _is_drawn(run: Run) -> bool:
    return any(_significant_digits(text) >= _MIN_DIGITS for text in run.params.values())


def _significant_digits(text: str) -> int:
    """Return the number of significant digits of a number with a fraction; 0 for other text."""
    number = re.fullmatch(r"[-+]?(\d*)\.(\d+)(?:[eE][-+]?\d+)?", text.strip())
    return len((number[1] + number[2]).strip("0")) if number else 0


def _one_parameter_explains(parsed: Sequence[Mapping[str, object]]) -> bool:
    """Return True if one parameter, which all trials have, determines which other parameters a trial has."""
    shared = set.intersection(*(set(p) for p in parsed))
    for name in shared:
        values: dict[object, set[frozenset[str]]] = {}
        for params in parsed:
            values.setdefault(params[name], set()).add(frozenset(params))
        if 2 * len(values) <= len(parsed) and all(len(names) == 1 for names in values.values()):
            return True
    return False


def _is_grid(experiment: Experiment, groups: Groups, name: str) -> bool:
    """Return True if at least half of the settings in the smaller groups were also tried in the largest group, as in a grid."""

    def settings(members: Iterable[int]) -> set[frozenset[tuple[str, object]]]:
        parsed = inference.parse_params([experiment.runs[i].params for i in members])
        return {frozenset((k, v) for k, v in p.items() if k != name) for p in parsed}

    largest, *rest = sorted(groups.values(), key=len, reverse=True)
    smaller, known = settings(i for members in rest for i in members), settings(largest)
    return 2 * len(smaller & known) >= len(smaller)


def _are_separate(experiment: Experiment, groups: Groups) -> bool:
    """Return True if the groups differ in time or in a hyperparameter's range by more than chance."""
    columns = [_start_times(experiment, groups)]
    parsed = {i: p for i, p in _parsed(experiment, groups).items() if p}
    for name in sorted({n for p in parsed.values() for n in p}):
        values = [[float(v) for i in g if isinstance(v := parsed.get(i, {}).get(name), float)] for g in groups.values()]
        if all(values):
            columns.append(values)
    return any(_are_disjoint(column, tests=len(columns)) for column in columns)


def _parsed(experiment: Experiment, groups: Groups) -> dict[int, Mapping[str, object]]:
    members = [i for g in groups.values() for i in g]
    return dict(zip(members, inference.parse_params([experiment.runs[i].params for i in members]), strict=True))


def _start_times(experiment: Experiment, groups: Groups) -> list[list[float]]:
    return [[s for i in g if (s := experiment.runs[i].started) is not None] for g in groups.values()]


def _are_disjoint(groups: Sequence[Sequence[float]], *, tests: int) -> bool:
    """Return True if the groups' ranges do not overlap, which has a probability of at most `_LEVEL` in random groups."""
    filled = sorted((g for g in groups if g), key=min)
    if len(filled) < max(2, len(groups)) or any(max(a) >= min(b) for a, b in itertools.pairwise(filled)):
        return False
    orders = math.lgamma(sum(map(len, filled)) + 1) - sum(math.lgamma(len(g) + 1) for g in filled)
    return math.lgamma(len(filled) + 1) - orders <= math.log(_LEVEL / tests)
