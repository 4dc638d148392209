"""Determines the hyperparameters, the seed and the facts of each trial, from the tags of our training hooks or from the run's
parameters."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from advisor import contract
from advisor.model.reading import Decision
from advisor.model.space import HyperparameterValue, IntArray, words_of_name
from advisor.model.spec import Objective, StudySpec
from advisor.model.study import StepUnit, Trial
from advisor.model.usual_rates import starts_from_pretrained, trains_adapter
from advisor.tracking.runs import Experiment, Run
from advisor.tracking.study import axes, declared, from_params, from_study_file, inference
from advisor.tracking.study.curves import ExperimentCurves
from advisor.tracking.study.roles import ParameterRoles, parameter_roles
from advisor.tracking.study.status import TrialEnds, find_trial_ends


@dataclass(frozen=True, slots=True)
class StudyTrials:
    trials: tuple[Trial, ...]
    spec: StudySpec | None
    """Study file that declares the search space of the trials; None if there is none."""
    unit: StepUnit
    """Value for `Study.unit`, the unit of the logged steps."""
    warnings: tuple[str, ...]
    roles: ParameterRoles
    """Roles of parameters that follow from others, or that are the length of training under an unusual name."""
    decisions: tuple[Decision, ...] = ()
    """Decisions about the parameters and about how the trials ended."""


def build_trials(
    experiment: Experiment, indices: IntArray, curves: ExperimentCurves, objective: Objective, spec: StudySpec | None
) -> StudyTrials:
    """Return the trials for the runs with the given indices. spec: study file that the user passed."""
    runs = [experiment.runs[i] for i in indices]
    params = inference.parse_params([run.params for run in runs], with_none=declared.parameters_with_none_choice(runs))
    spec = spec or from_study_file.find_spec(experiment, params)
    if spec is not None:
        params = [spec.with_computed_values(trial) for trial in params]
    blocks, start = curves.blocks, curves.start
    last_steps = axes.last_steps(blocks)
    fixed_roles = {*(spec.parameters if spec is not None else ()), *declared.parameters(runs, params)}
    roles = parameter_roles(params, fixed_roles, (last_steps + start.steps).tolist())
    how = find_trial_ends(runs, blocks, objective, params, lengths=roles.lengths)
    names = _distinct_names(runs)
    facts = _facts_of_trials(runs, params, roles, how, last_steps, start)
    are_steps_epochs = axes.are_steps_epochs(last_steps, params)
    if are_steps_epochs:  # if steps count from 0, the last step is one less than the number of epochs
        _add_planned_epochs(facts, params)
    trials = tuple(
        Trial(
            index=i,
            id=run.id,
            name=names[i],
            status=how.ends[i].status,
            params={name: value for name, value in params[i].items() if name not in roles.left_out},
            seed=_seed_of_run(run),
            facts=facts[i],
            started=run.started,
            ended=run.ended,
            reason=how.ends[i].reason,
            tags={k: v for k, v in run.tags.items() if not k.startswith((contract.TAG_PREFIX, "mlflow."))},
        )
        for i, run in enumerate(runs)
    )
    by_epoch = all(fact.get("step_unit") == "epoch" for fact in facts) or are_steps_epochs
    warnings = ["Metrics were logged by epoch, so every step in this report is an epoch."] if by_epoch else []
    decisions = (*roles.decisions, *how.decisions)
    return StudyTrials(trials, spec, "epoch" if by_epoch else start.unit, tuple(warnings), roles, decisions)


def _facts_of_trials(
    runs: Sequence[Run],
    params: Sequence[Mapping[str, HyperparameterValue]],
    roles: ParameterRoles,
    how: TrialEnds,
    last_steps: IntArray,
    start: axes.StepOffsets,
) -> list[dict[str, str]]:
    """Return facts about each trial: first the facts that training hooks logged, then the facts that parameters, curves and
    errors show."""
    facts = [_logged_facts(run) for run in runs]
    ends = last_steps + start.steps
    _add_stated_facts(facts, params, ends.tolist())
    _add_planned_lengths(facts, roles)
    _shift_planned_steps(facts, ends, start.steps)
    for i, error in how.errors.items():
        facts[i].setdefault("error", error)
    return facts


def _add_planned_lengths(facts: Sequence[dict[str, str]], roles: ParameterRoles) -> None:
    """Add the planned steps to each trial's entry in `facts`, shape (trials,), if a parameter with an unusual name states them."""
    for known, steps in zip(facts, roles.steps, strict=True):
        if steps is not None:
            known.setdefault("max_train_steps", str(steps))


def _add_planned_epochs(facts: Sequence[dict[str, str]], params: Sequence[Mapping[str, HyperparameterValue]]) -> None:
    """Add the planned number of epochs, as planned steps, to each trial's entry in `facts`, shape (trials,)."""
    for known, epochs in zip(facts, axes.planned_epochs(params), strict=True):
        if epochs >= 1:
            known.setdefault("max_train_steps", f"{epochs:.0f}")


def _logged_facts(run: Run) -> dict[str, str]:
    autologging = {"autologging": name} if (name := run.tags.get("mlflow.autologging")) else {}
    facts = {k.removeprefix(contract.TAG_PREFIX): v for k, v in run.tags.items() if k.startswith(contract.TAG_PREFIX)}
    pretrained = (
        {"pretrained": "adapter" if trains_adapter(run.params) else "true"} if starts_from_pretrained(run.params) else {}
    )
    adapter = {"adapter": "true"} if trains_adapter(run.params) else {}
    tuner = {"tuner": "optuna"} if declared.has_tuner_tags(run) else {}
    commit = {"source_commit": text} if (text := run.tags.get("mlflow.source.git.commit")) else {}
    return autologging | pretrained | adapter | tuner | commit | facts


def _add_stated_facts(
    facts: Sequence[dict[str, str]], params: Sequence[Mapping[str, HyperparameterValue]], last_steps: Sequence[int]
) -> None:
    """Add facts that only the trial's parameters state to its entry in `facts`, shape (trials,)."""
    for known, trial, steps in zip(facts, params, from_params.max_train_steps(params, last_steps), strict=True):
        if steps is not None:
            known.setdefault("max_train_steps", str(steps))
        if math.isfinite(size := from_params.batch_size(trial)):
            known.setdefault("batch_size", f"{size:.0f}")


def _shift_planned_steps(facts: Sequence[dict[str, str]], last_steps: IntArray, starts: IntArray) -> None:
    """Subtract the first logged step from a trial's planned steps if the planned steps are not clearly smaller than the last
    logged step, because they then include the first step. Arrays have shape (trials,)."""
    for known, last, start in zip(facts, last_steps.tolist(), starts.tolist(), strict=True):
        planned = from_params.parse_count(known.get("max_train_steps", ""))
        if start and planned >= 0.9 * last:
            known["max_train_steps"] = str(int(planned) - start)


def _seed_of_run(run: Run) -> int | None:
    text = run.tags.get(contract.TAG_SEED)
    if text is None:
        names = (name for name in sorted(run.params, key=len) if _is_seed(words_of_name(name)))
        text = next((run.params[name] for name in names), "")
    try:
        return int(float(text))
    except (ValueError, OverflowError):
        return None


def _is_seed(words: Sequence[str]) -> bool:
    """Return whether a parameter whose name has these words seeds the whole training (seed, random_state), unlike data_seed."""
    return words[-2:] == ["random", "state"] or (words[-1:] == ["seed"] and "data" not in words)


def _distinct_names(runs: Sequence[Run]) -> list[str]:
    """Return the names of the runs; if several runs have the same name, append the beginning of each run's id. The beginning is
    long enough for the names to differ."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for run in runs:
        by_name[run.name or run.id].append(run.id)
    lengths = {name: _distinct_prefix_length(ids) for name, ids in by_name.items() if len(ids) > 1}
    names = ((run.name or run.id, run.id) for run in runs)
    return [f"{name} ({id[: lengths[name]]})" if name in lengths else name for name, id in names]


def _distinct_prefix_length(ids: Sequence[str]) -> int:
    """Return the smallest length, from 6, at which the beginnings of these ids differ."""
    return next((n for n in range(6, max(map(len, ids))) if len({id[:n] for id in ids}) == len(ids)), max(map(len, ids)))
