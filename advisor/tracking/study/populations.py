"""Separates populations: runs that do not form one study, by evidence that one search rarely shows. The largest is analysed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from advisor import contract
from advisor.model.errors import AdvisorError
from advisor.model.reading import Decision
from advisor.model.space import equal_values
from advisor.model.words import clean, count, shorten
from advisor.tracking.runs import Experiment
from advisor.tracking.study import inference
from advisor.tracking.study.population_splits import split_runs
from advisor.tracking.study.probes import PARENT_RUN_TAG, select_runs

_MIN_POPULATION_RUNS = 3
"""Minimum number of runs in the largest population."""
_MAX_LISTED_POPULATIONS = 4
_MAX_FILTER_IDS = 5


@dataclass(frozen=True, slots=True)
class RunPopulation:
    experiment: Experiment
    decisions: tuple[Decision, ...] = ()
    warnings: tuple[str, ...] = ()


def select_population(
    experiment: Experiment, selection: str | None, *, objective: str | None = None, declared_study: bool = False
) -> RunPopulation:
    """Return the runs to analyse, and the decisions about the others. selection: "all", `PARAMETER=VALUE`, or None for the
    largest population. objective: only runs that logged this metric count. declared_study: whether a study file declares the
    search space, so that only test runs are separated. Raises AdvisorError if no run matches, or if no population has enough
    runs."""
    if selection is not None:
        return RunPopulation(experiment) if selection == "all" else _runs_with_value(experiment, selection)
    if declared_study:
        return _without_test_runs(experiment)
    parents = {run.tags.get(PARENT_RUN_TAG) for run in experiment.runs}
    chosen, others = [i for i, run in enumerate(experiment.runs) if run.params and run.id not in parents], []
    with_objective = set(experiment.points[objective].runs.tolist()) if objective and objective in experiment.points else None
    title = ""
    while (groups := split_runs(experiment, chosen)) is not None:
        group_sizes = {t: len(g if with_objective is None else with_objective & set(g)) for t, g in groups.items()}
        largest_group = max(groups, key=lambda t: (group_sizes[t], max(groups[t])))
        others += [(t, members) for t, members in groups.items() if t != largest_group]
        chosen, title = groups[largest_group], " and ".join(filter(None, (title, largest_group)))
    return _largest_population(experiment, title, chosen, others) if others else RunPopulation(experiment)


def _largest_population(
    experiment: Experiment, title: str, chosen: list[int], others: list[tuple[str, list[int]]]
) -> RunPopulation:
    """others: (title, run indices) of the other groups."""
    if len(chosen) < _MIN_POPULATION_RUNS:
        groups = [(title, chosen), *others]
        most = count(max(len(members) for _, members in groups), "run")
        raise AdvisorError(
            f"experiment {experiment.name!r} is not one study: it mixes {len(groups)} kinds of runs with at most {most} each; "
            f"analyze one kind with a filter ({_format_groups(experiment, groups)}), or all with --population all"
        )
    run_count = len(chosen) + sum(len(members) for _, members in others)
    # The title of a group, such as "a sweep", is not a filter, so a filter for exactly its runs is listed as well.
    other_groups_text = _format_groups(experiment, sorted(others, key=lambda o: -len(o[1])))
    text = (
        f"The experiment contains {len(others) + 1} kinds of runs, which do not form one study. We analyse the largest kind: "
        f"{len(chosen):,} of {run_count:,} runs, {title}. The others: {other_groups_text}."
    )
    decision = _population_decision(text, _parameters_that_select(experiment, chosen))
    warning = f"Only {len(chosen):,} of {run_count:,} runs are analysed: {title}. The other runs are of a different kind."
    return RunPopulation(_select_members(experiment, chosen), (decision,), (warning,))


def _population_decision(text: str, parameters: tuple[str, ...] = ()) -> Decision:
    return Decision(topic="population", text=text, overrule="--population all", parameters=parameters)


def _without_test_runs(experiment: Experiment) -> RunPopulation:
    """Omit runs that `advisor run` did not start, with another number of planned steps than all that it started."""
    planned_steps = [run.tags.get(contract.TAG_MAX_TRAIN_STEPS) for run in experiment.runs]
    is_launched = [contract.TAG_TRIAL in run.tags for run in experiment.runs]
    lengths = {steps for steps, ours in zip(planned_steps, is_launched, strict=True) if ours and steps is not None}
    is_kept = [ours or steps is None or steps in lengths for steps, ours in zip(planned_steps, is_launched, strict=True)]
    out = len(is_kept) - sum(is_kept)
    if not out or sum(is_launched) < _MIN_POPULATION_RUNS or not lengths:
        return RunPopulation(experiment)
    subject = f"{count(out, 'run')} of {len(is_kept):,} {'was' if out == 1 else 'were'} started by hand"
    text = f"{subject} and planned another number of steps than the study's trials. We omit these test runs."
    kept_runs = select_runs(experiment, np.array(is_kept, dtype=np.bool_))
    return RunPopulation(kept_runs, (_population_decision(text),))


def _select_members(experiment: Experiment, chosen: Sequence[int]) -> Experiment:
    """Return the experiment with the chosen runs, their parents, and all runs without parameters."""
    members = set(chosen)
    parents = {experiment.runs[i].tags.get(PARENT_RUN_TAG) for i in members}
    all_parents = {run.tags.get(PARENT_RUN_TAG) for run in experiment.runs}
    kept_ids = parents | {run.id for run in experiment.runs if not run.params} - all_parents
    is_kept = [i in members or run.id in kept_ids for i, run in enumerate(experiment.runs)]
    return select_runs(experiment, np.array(is_kept, dtype=np.bool_))


def _runs_with_value(experiment: Experiment, selection: str) -> RunPopulation:
    name, equals, text = (part.strip() for part in selection.partition("="))
    values = Counter(run.params[name] for run in experiment.runs if name in run.params)
    if not equals or not values:
        raise AdvisorError(f"--population {selection!r} is neither all nor PARAM=VALUE of a parameter that runs logged")
    value = inference.parse_value(text)
    parsed = {logged: inference.parse_value(logged) for logged in values}
    equal = {t for t, v in parsed.items() if t == text or (value is not None and v is not None and equal_values(v, value))}
    chosen_runs = [i for i, run in enumerate(experiment.runs) if run.params.get(name) in equal]
    if not chosen_runs:
        used_values = ", ".join(shorten(v) for v, _ in values.most_common(_MAX_LISTED_POPULATIONS))
        raise AdvisorError(f"no run has {name} = {text}; values that most runs have: {used_values}")
    runs_text = f"{count(len(chosen_runs), 'run')} of {len(experiment.runs):,} with {clean(name)} = {clean(text)}"
    decision = _population_decision(f"{runs_text} are analysed.", _parameters_that_select(experiment, chosen_runs))
    return RunPopulation(_select_members(experiment, chosen_runs), (decision,))


def _parameters_that_select(experiment: Experiment, chosen: Sequence[int]) -> tuple[str, ...]:
    chosen_indices = set(chosen)
    params = [experiment.runs[i].params for i in sorted(chosen_indices)]
    params_of_others = [run.params for i, run in enumerate(experiment.runs) if i not in chosen_indices]
    constant_names = (n for n, value in params[0].items() if all(p.get(n) == value for p in params))
    return tuple(sorted(n for n in constant_names if any(p.get(n, params[0][n]) != params[0][n] for p in params_of_others)))


def _format_groups(experiment: Experiment, others: Sequence[tuple[str, Sequence[int]]]) -> str:
    group_texts = []
    for title, members in others[:_MAX_LISTED_POPULATIONS]:
        filter_text = filter_of_runs(experiment, members)
        group_texts.append(f"{title}, {count(len(members), 'run')}" + (f', `--filter "{filter_text}"`' if filter_text else ""))
    unlisted_count = len(others) - _MAX_LISTED_POPULATIONS
    return "; ".join([*group_texts, *([f"{unlisted_count} more kinds"] if unlisted_count > 0 else [])])


def filter_of_runs(experiment: Experiment, members: Collection[int]) -> str | None:
    """Return the shortest filter that selects exactly these runs, if any."""
    wanted_runs = frozenset(members)
    # Values and keys with quotes would need escape sequences, which MLflow's filters do not have.
    return next((text for text, runs in _candidate_filters(experiment, wanted_runs) if runs == wanted_runs), None)


def _candidate_filters(experiment: Experiment, wanted: frozenset[int]) -> Iterator[tuple[str, frozenset[int]]]:
    runs = experiment.runs
    for kind in ("params", "tags"):
        logged_values = [run.params if kind == "params" else run.tags for run in runs]
        first_run_values = logged_values[min(wanted)]
        keys = sorted({k for values in logged_values for k in values if "`" not in k}, key=lambda k: (len(k), k))
        for key in keys:
            value = first_run_values.get(key)
            if value is not None and "'" not in value and len(value) <= 100 and not key.startswith("mlflow."):
                runs_with_value = frozenset(i for i, values in enumerate(logged_values) if values.get(key) == value)
                yield f"{kind}.{_quote_filter_key(key)} = '{value}'", runs_with_value
        for key in keys:
            runs_with_key = frozenset(i for i, values in enumerate(logged_values) if key in values)
            yield f"{kind}.{_quote_filter_key(key)} IS NOT NULL", runs_with_key
            yield f"{kind}.{_quote_filter_key(key)} IS NULL", frozenset(range(len(runs))) - runs_with_key
    yield from _start_time_filters(experiment, wanted)
    if len(wanted) <= _MAX_FILTER_IDS:
        names = ", ".join(f"'{runs[i].id}'" for i in sorted(wanted))
        yield f"attributes.run_id IN ({names})", wanted


def _start_time_filters(experiment: Experiment, wanted: frozenset[int]) -> Iterator[tuple[str, frozenset[int]]]:
    """Yield filters for all runs before the first unwanted one, or from the first wanted one on."""
    start_times = [run.started for run in experiment.runs]
    known_times = [s for s in start_times if s is not None]
    if len(known_times) < len(start_times):
        return
    first_start = min(known_times[i] for i in wanted)
    later_times = [s for i, s in enumerate(known_times) if i not in wanted and s > first_start]
    bounds = [("<", min(later_times))] if later_times else []
    for sign, bound in [(">=", first_start), *bounds]:
        selected_runs = frozenset(i for i, s in enumerate(known_times) if (s >= bound if sign == ">=" else s < bound))
        yield f"attributes.start_time {sign} {round(1000 * bound)}", selected_runs


def _quote_filter_key(key: str) -> str:
    return key if key.isidentifier() else f"`{key}`"
