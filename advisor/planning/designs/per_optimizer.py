"""The design `per-optimizer`: one study for each optimizer, with this optimizer's own hyperparameters and ranges.

Playbook: "Identifying scientific, nuisance, and fixed hyperparameters", "How should Adam's hyperparameters be tuned?".

*When.* Several optimizers were searched with a common learning rate, or the user runs `advisor init --compare
optimizer=sgd,adam`. A good learning rate for SGD is about a hundred times as high as for Adam, so no common range suits both.

*What.* One study per optimizer, each with an equal share of the trials, but at least five. Each study tunes the hyperparameters
that `advisor.model.optimizers` lists for this optimizer and number of trials. The learning-rate range is the optimizer's usual
range, or a lower one if the searched range is lower."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from advisor.model import optimizers
from advisor.model.change import RunPlan
from advisor.model.errors import AdvisorError
from advisor.model.optimizers import HYPERPARAMETERS_BY_OPTIMIZER, TunableHyperparameter
from advisor.model.prediction import round_significant
from advisor.model.space import HyperparameterValue, as_number, is_learning_rate
from advisor.model.spec import Parameter, StudySpec
from advisor.model.study import Study
from advisor.model.words import listed
from advisor.planning.base import MIN_SEARCH_TRIALS
from advisor.planning.designs.initial import FAIR_NOTE, FirstStudyRequest, as_searched_parameter, first_study_of_project
from advisor.planning.designs.one_each import one_study_per_value

PER_OPTIMIZER_GOAL = "Tune each optimizer in a separate study"
MIN_TRIALS_OF_OPTIMIZER = 6
"""Minimum number of trials with a result that narrow the usual learning-rate range of their optimizer. Our choice."""
MEASURE_AGAIN_NOTE = "Measure the throughput again for this optimizer: memory and feasible batch sizes depend on its state."


def design(_request: RunPlan, _study: Study, base: StudySpec) -> StudySpec:
    """Return `base` with another goal; `divide_by_optimizer` later replaces this study by one study per optimizer."""
    return base.model_copy(update={"goal": PER_OPTIMIZER_GOAL})


def divide_by_optimizer(specs: Sequence[StudySpec]) -> list[StudySpec]:
    """Return the studies, in which one study per optimizer replaces the first study that searches several optimizers with one
    learning rate.

    Drop all later studies, because they are based on the common learning-rate range."""
    for i, spec in enumerate(specs):
        shared_rate = optimizers.shared_learning_rate(spec)
        if shared_rate is not None:
            return [*specs[:i], *one_study_per_optimizer(spec, *shared_rate)]
    return list(specs)


def usual_rate_range_parts(study: Study, whole: Sequence[StudySpec], own: StudySpec) -> set[tuple[str, str]]:
    """If the study `own` of a single optimizer keeps the optimizer's usual learning-rate range, return both ends of this range
    as (name, end), because they must stay unchanged.

    Earlier trials narrow the learning-rate range if enough of them used this optimizer."""
    shared_rate = next(filter(None, map(optimizers.shared_learning_rate, whole)), None)
    if shared_rate is None or shared_rate[0] not in own.parameters:
        return set()
    chooser, rate = shared_rate
    optimizer_trials = [t for t in study.ranked() if t.params.get(chooser) == own.parameters[chooser].value]
    return {(rate, "low"), (rate, "high")} if len(optimizer_trials) < MIN_TRIALS_OF_OPTIMIZER else set()


def first_study_per_optimizer(request: FirstStudyRequest, chooser: str) -> list[StudySpec]:
    """Return the first study of each optimizer that `chooser` compares. Raises AdvisorError if an optimizer is unknown."""
    options = request.parameters[chooser].options
    unknown = [str(v) for v in options if optimizers.optimizer_in_value(v) is None]
    if unknown:
        known = ", ".join(sorted(HYPERPARAMETERS_BY_OPTIMIZER))
        raise AdvisorError(f"no usual ranges are known for {', '.join(unknown)}; optimizers that can be compared: {known}")
    rate = next((n for n, p in request.parameters.items() if is_learning_rate(n) and p.numeric), None)
    if rate is not None:
        raise AdvisorError(
            f"one range of {rate} does not suit all optimizers; leave this option out, or write a separate study for each optimizer"
        )
    why = f"one study for each of {len(options)} optimizers; compare their best trials"
    studies = []
    for value in options:
        optimizer = optimizers.optimizer_in_value(value) or request.optimizer
        foreign = _other_optimizers_parameters(request.parameters, HYPERPARAMETERS_BY_OPTIMIZER[optimizer])
        own = {n: p for n, p in request.parameters.items() if n != chooser and n not in foreign}
        parameters = {chooser: Parameter(role="fixed", value=value, why=why), **own}
        trials = max(request.trials // len(options), MIN_SEARCH_TRIALS)
        spec = first_study_of_project(replace(request, optimizer=optimizer, trials=trials, parameters=parameters))
        goal = _optimizer_goal(spec, value, options)
        studies.append(spec.model_copy(update={"goal": goal, "notes": (*spec.notes, FAIR_NOTE, MEASURE_AGAIN_NOTE)}))
    return studies


def one_study_per_optimizer(spec: StudySpec, chooser: str, rate: str) -> list[StudySpec]:
    """Return one study for each optimizer among the choices of `chooser`; rate: name of the learning rate that they share."""
    options = spec.parameters[chooser].options
    trials = spec.trials and max(spec.trials, MIN_SEARCH_TRIALS * len(options))
    resized = spec.model_copy(update={"trials": trials})
    known_optimizers = [o for v in options if (o := optimizers.optimizer_in_value(v)) is not None]
    lowest_rate = min((HYPERPARAMETERS_BY_OPTIMIZER[o][0].low for o in known_optimizers), default=1.0)
    short_names = [str(v).rpartition(".")[2].lower() for v in options]
    studies = []
    for i, own in enumerate(one_study_per_value(resized, chooser, limit=len(options))):
        study = _study_of_optimizer(own, rate, options[i], lowest_rate)
        slug = re.sub(r"[^a-z0-9]+", "-", short_names[i]).strip("-") or "optimizer"
        if short_names.count(short_names[i]) > 1:
            slug += f"-{short_names[: i + 1].count(short_names[i])}"
        # The optimizer comes before the round number.
        base, number = re.split(r"(?=-round-\d+$)|$", spec.study, maxsplit=1)
        name = f"{base}-{slug}{number}"
        studies.append(study.model_copy(update={"study": name, "goal": _optimizer_goal(study, options[i], options)}))
    return studies


def _optimizer_goal(spec: StudySpec, value: HyperparameterValue, options: Sequence[HyperparameterValue]) -> str:
    later_options = options[options.index(value) + 1 :]
    next_text = f"; then {listed(map(str, later_options))}" if later_options else ""
    return f"Tune {value} in a separate study: {', '.join(spec.searched)}{next_text}"


def _study_of_optimizer(spec: StudySpec, rate: str, value: HyperparameterValue, lowest_rate: float) -> StudySpec:
    """lowest_rate: low end of the lowest usual learning-rate range."""
    optimizer = optimizers.optimizer_in_value(value)
    parameters = dict(spec.parameters)
    if optimizer is not None:
        ladder = [r for r in HYPERPARAMETERS_BY_OPTIMIZER[optimizer] if not is_learning_rate(r.name)]
        for name in _other_optimizers_parameters(parameters, ladder):
            del parameters[name]
        parameters[rate] = _shift_rate_range(parameters[rate], HYPERPARAMETERS_BY_OPTIMIZER[optimizer][0], lowest_rate, value)
        for rung in ladder:
            name = next((n for n in parameters if optimizers.denotes_hyperparameter(rung.name, n, optimizer)), rung.name)
            is_searched = name in parameters and parameters[name].searched
            if (spec.trials or 1) >= rung.min_trials and not is_searched:
                parameters[name] = as_searched_parameter(rung)
            elif (spec.trials or 1) < rung.min_trials and is_searched:
                old = parameters[name]
                why = f"the usual default; tuning it takes {rung.min_trials} trials, there are {spec.trials or 1}"
                default = min(max(rung.default, old.declared_limits[0]), old.declared_limits[1])
                parameters[name] = Parameter(role="fixed", value=default, limits=old.limits, when=old.when, why=why)
    return spec.model_copy(
        update={
            "parameters": parameters,
            "forbidden": tuple(r for r in spec.forbidden if r.where.keys() <= parameters.keys()),
            "notes": (*spec.notes, MEASURE_AGAIN_NOTE),
        }
    )


def _other_optimizers_parameters(parameters: Mapping[str, Parameter], own: Sequence[TunableHyperparameter]) -> list[str]:
    """Return the searched hyperparameters that only other optimizers use and on which no other hyperparameter depends."""
    foreign_names = {r.name for ladder in HYPERPARAMETERS_BY_OPTIMIZER.values() for r in ladder if not is_learning_rate(r.name)}
    foreign_names -= {r.name for r in own}
    condition_names = {n for p in parameters.values() for n in (p.when or {})}
    formulas = " ".join(p.formula or p.equals or "" for p in parameters.values())
    independent = [n for n, p in parameters.items() if p.searched and n not in condition_names and n not in formulas]
    pairs = list(itertools.product(foreign_names, HYPERPARAMETERS_BY_OPTIMIZER))
    return [n for n in independent if any(optimizers.denotes_hyperparameter(name, n, o) for name, o in pairs)]


def _shift_rate_range(shared: Parameter, usual: TunableHyperparameter, lowest: float, value: HyperparameterValue) -> Parameter:
    factor = usual.low / lowest
    numbers = [x for v in (shared.low, shared.high, *shared.options) if (x := as_number(v)) > 0]
    low = min([usual.low, *(x * factor for x in numbers)])
    high = min(usual.high, max(numbers) * factor) if shared.searched and numbers else usual.high
    min_rate, max_rate = shared.declared_limits
    low, high = max(round_significant(low, 3), min_rate), min(round_significant(high, 3), max_rate)
    if not low < high:
        return shared
    why = f"the usual learning rates of {value}; other optimizers have other usual rates"
    return Parameter(type="float", low=low, high=high, scale="log", limits=shared.limits, when=shared.when, why=why)
