"""Determines the hyperparameters, the seed and the facts of each trial, from hooks' tags or from parameters."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from advisor import contract
from advisor.model.reading import Decision
from advisor.model.space import FloatArray, IntArray, Params, words_of_name
from advisor.model.spec import Objective, StudySpec
from advisor.model.study import StepUnit, Trial
from advisor.model.usual_rates import starts_from_pretrained, trains_adapter
from advisor.tracking.runs import Experiment, Run
from advisor.tracking.study import axes, declared, from_params, from_study_file, inference
from advisor.tracking.study.curves import ExperimentCurves
from advisor.tracking.study.objective_costs import is_best_so_far, objective_costs_of
from advisor.tracking.study.roles import ParameterRoles, parameter_roles
from advisor.tracking.study.status import find_trial_ends

_BEST_SO_FAR_WARNING = (
    "No evaluation of {metric} is worse than an earlier one, so it seems to be the best value so far. Such curves hide "
    "overfitting, instability and noise: log the value of each evaluation."
)


@dataclass(frozen=True, slots=True)
class StudyTrials:
    trials: tuple[Trial, ...]
    spec: StudySpec | None
    """Study file that declares the search space, if any."""
    unit: StepUnit
    warnings: tuple[str, ...]
    roles: ParameterRoles
    decisions: tuple[Decision, ...] = ()


def build_trials(
    experiment: Experiment, indices: IntArray, curves: ExperimentCurves, objective: Objective, spec: StudySpec | None
) -> StudyTrials:
    """Return the trials for the runs with the given indices. spec: study file that the user passed."""
    runs = [experiment.runs[i] for i in indices]
    params = inference.parse_params([run.params for run in runs], with_none=declared.parameters_with_none_choice(runs))
    spec = spec or from_study_file.find_spec(experiment, params)
    if spec is not None:
        params = [spec.with_computed_values(trial) for trial in params]
    blocks, start, last_steps = curves.blocks, curves.start, axes.last_steps(curves.blocks)
    fixed_roles = {*(spec.parameters if spec is not None else ()), *declared.tuner_parameters(runs, params)}
    roles = parameter_roles(params, fixed_roles, (last_steps + start.steps).tolist())
    are_steps_epochs = axes.are_steps_epochs(last_steps, params)
    costs = objective_costs_of(blocks, objective.metric, minimize=objective.direction == "minimize", trials=len(runs))
    how = find_trial_ends(runs, blocks, costs, objective, params, lengths=roles.lengths, steps_are_epochs=are_steps_epochs)
    # If steps count from 0, the planned number of epochs is one more than the last step.
    epochs = axes.planned_epochs(params) if are_steps_epochs else None
    facts = _facts_of_trials(runs, params, roles, last_steps, start, epochs)
    for i, error in how.errors.items():
        facts[i].setdefault("error", error)
    trials = []
    for i, (run, name, end) in enumerate(zip(runs, _distinct_names(runs), how.ends, strict=True)):
        own_params = {n: v for n, v in params[i].items() if n not in roles.omitted_names}
        tags = {k: v for k, v in run.tags.items() if not k.startswith((contract.TAG_PREFIX, "mlflow."))}
        trial = Trial(i, run.id, name, end.status, own_params, _seed_of_run(run), facts[i], run.started, run.ended)
        trials.append(replace(trial, reason=end.reason, tags=tags))
    by_epoch = all(fact.get("step_unit") == "epoch" for fact in facts) or are_steps_epochs
    warnings = ["Metrics were logged by epoch, so every step in this report is an epoch."] if by_epoch else []
    warnings += [_BEST_SO_FAR_WARNING.format(metric=objective.metric)] if is_best_so_far(costs) else []
    unit: StepUnit = "epoch" if by_epoch else start.unit
    return StudyTrials(tuple(trials), spec, unit, tuple(warnings), roles, roles.decisions + how.decisions)


def _facts_of_trials(
    runs: Sequence[Run],
    params: Sequence[Params],
    roles: ParameterRoles,
    last_steps: IntArray,
    start: axes.StepOffsets,
    epochs: FloatArray | None,
) -> list[dict[str, str]]:
    """Return each trial's logged facts, or else those that parameters and curves show. epochs: planned epochs of each trial, if
    the steps are epochs."""
    facts = [_logged_facts(run) for run in runs]
    last_logged_steps = (last_steps + start.steps).tolist()
    planned_steps = from_params.max_train_steps(params, last_logged_steps)
    for i, known in enumerate(facts):
        if (steps := planned_steps[i] if planned_steps[i] is not None else roles.steps[i]) is not None:
            known.setdefault("max_train_steps", str(steps))
        if math.isfinite(size := from_params.batch_size(params[i])):
            known.setdefault("batch_size", f"{size:.0f}")
        # Planned steps that are not clearly smaller than the last logged step include the first logged step.
        stated, first = from_params.parse_count(known.get("max_train_steps", "")), int(start.steps[i])
        if first and stated >= 0.9 * last_logged_steps[i]:
            known["max_train_steps"] = str(int(stated) - first)
        if epochs is not None and epochs[i] >= 1:
            known.setdefault("max_train_steps", f"{epochs[i]:.0f}")
    return facts


def _logged_facts(run: Run) -> dict[str, str]:
    has_adapter = trains_adapter(run.params)
    facts = {
        "autologging": run.tags.get("mlflow.autologging"),
        "pretrained": ("adapter" if has_adapter else "true") if starts_from_pretrained(run.params) else None,
        "adapter": "true" if has_adapter else None,
        "tuner": "optuna" if declared.has_tuner_tags(run) else None,
        "source_commit": run.tags.get("mlflow.source.git.commit"),
    }
    tag_facts = {k.removeprefix(contract.TAG_PREFIX): v for k, v in run.tags.items() if k.startswith(contract.TAG_PREFIX)}
    return {k: v for k, v in facts.items() if v} | tag_facts | ({"autopsy": run.autopsy} if run.autopsy else {})


def _seed_of_run(run: Run) -> int | None:
    text = run.tags.get(contract.TAG_SEED)
    if text is None:
        # The seed of the whole training is named seed or random_state, unlike data_seed.
        words = {name: words_of_name(name) for name in sorted(run.params, key=len)}
        names = (name for name, w in words.items() if w[-2:] == ["random", "state"] or (w[-1:] == ["seed"] and "data" not in w))
        text = next((run.params[name] for name in names), "")
    try:
        return int(float(text))
    except (ValueError, OverflowError):
        return None


def _distinct_names(runs: Sequence[Run]) -> list[str]:
    """Return the names of the runs; equal names get enough of the run's id to differ."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for run in runs:
        by_name[run.name or run.id].append(run.id)
    lengths = {}
    for name, ids in by_name.items():
        if len(ids) > 1:
            max_id_length = max(map(len, ids))
            lengths[name] = next((n for n in range(6, max_id_length) if len({id[:n] for id in ids}) == len(ids)), max_id_length)
    names = ((run.name or run.id, run.id) for run in runs)
    return [f"{name} ({id[: lengths[name]]})" if name in lengths else name for name, id in names]
