"""The design `initial`: the first study of a project, from an optimizer and a budget.

Playbook: "Choosing the initial configuration", "How should Adam's hyperparameters be tuned?", "Identifying scientific,
nuisance, and fixed hyperparameters".

*When.* The user runs `advisor init` for a project without a study.

*What.* A simple, fast start with one goal: a constant learning rate and, unless requested, no regularisation. The number of
trials per compared value determines which hyperparameters are tuned; all others keep their defaults. For Adam and its variants,
the learning rate is always tuned, beta1 from 10 trials, epsilon from 25 and beta2 from 50 (our number for the playbook's
"substantially more"). For SGD, the learning rate is tuned and, from 10 trials, the momentum on a reverse-log scale. If
`final_train_steps` is set, each trial trains for a tenth of these steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from advisor.model import parameter_kinds
from advisor.model.errors import AdvisorError
from advisor.model.optimizers import HYPERPARAMETERS_BY_OPTIMIZER, TunableHyperparameter, denotes_hyperparameter
from advisor.model.spec import Checkpoints, Objective, Parameter, Sampler, StudySpec
from advisor.planning import roles
from advisor.planning.designs.batch_sweep import MEASURE_THROUGHPUT_NOTE
from advisor.planning.designs.rounds import SHORT_RUN_LENGTH_SHARE

EVALUATIONS_PER_TRIAL = 50
"""Number of evaluations per trial: enough to show overfitting, saturation and instability in the curves."""
BEST_CHECKPOINTS_KEPT = 1
"""Number of best checkpoints that each trial keeps, so that its best training step can be used later."""
REGULARISATION_NOTE = (
    "Add no regularisation yet unless the problem is known to need it. If the best trials overfit, the report adds dropout, label "
    "smoothing or weight decay to the next study."
)
ARCHITECTURE_NOTE = (
    "Start from a well-known architecture that is easy to train: reproduce a paper on a problem like yours, then change it step by "
    "step."
)
FAIR_NOTE = "Give each compared value, including the baseline, the same number of trials, so that all are tuned equally well."
EQUAL_STEPS_NOTE = (
    "Compare batch sizes at equally many steps. With equally many epochs, a larger batch takes fewer steps; the comparison then "
    "shows at best that the larger batch needs no more examples."
)
EVALUATION_NOTE = (
    "Average validation metrics over examples, not over batches: the last batch may be smaller. Save the predictions for the same "
    "few examples with each evaluation, to see what changes behind the metric."
)
LIST_ZERO_NOTE = "Every trial uses {name}. To see whether {name} helps at all, also try 0: --tune {name}=0,1e-5,1e-4,1e-3."
MEASURE_NOTE = "Measure the throughput again for each value: the feasible batch sizes depend on the model and the optimizer."


@dataclass(frozen=True, kw_only=True)
class FirstStudyRequest:
    """The user's request for the first study of a project: options of `advisor init`."""

    study: str
    objective: Objective
    optimizer: str
    trials: int
    max_train_steps: int | None = None
    final_train_steps: int | None = None
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    """Additional hyperparameters, and ranges that replace the default ranges of the optimizer's hyperparameters."""


def first_study_of_project(request: FirstStudyRequest) -> StudySpec:
    """Return the first study of a project. Raises AdvisorError if there is nothing to tune or compare."""
    steps, final = request.max_train_steps, request.final_train_steps
    if steps is None and final is not None:
        steps = max(round(SHORT_RUN_LENGTH_SHARE * final), 1)
    compared_values = math.prod(len(p.options) or 1 for p in request.parameters.values() if p.role == "scientific")
    trials = max(request.trials // compared_values, 1)
    parameters = {}
    for rung in HYPERPARAMETERS_BY_OPTIMIZER[request.optimizer]:
        names = () if rung.name in request.parameters else request.parameters
        if any(denotes_hyperparameter(rung.name, name, request.optimizer) for name in names):
            continue
        parameters[rung.name] = as_searched_parameter(rung)
        if trials < rung.min_trials:
            per_value = "" if trials == request.trials else " for each value"
            why = f"the default of {request.optimizer}; tuning it takes {rung.min_trials} trials, there are {trials}{per_value}"
            parameters[rung.name] = Parameter(role="fixed", value=rung.default, why=why)
    for name, p in request.parameters.items():
        parameters[name] = p.model_copy(update={"why": p.why or roles.reason_for_role(name, p.role, "set by the user")})
    tuned_names = [n for n, p in parameters.items() if p.searched and p.role == "nuisance"]
    compared_names = [n for n, p in parameters.items() if p.role == "scientific"]
    if not tuned_names and not compared_names:
        raise AdvisorError("everything is fixed, nothing is left to tune; remove a --fix or add --tune NAME=LOW..HIGH")
    detail = f"with {', '.join(tuned_names)} tuned for each" if tuned_names else "everything else unchanged"
    goal = f"Compare {', '.join(compared_names)}: {detail}" if compared_names else f"Find a baseline: {', '.join(tuned_names)}"
    return StudySpec(
        study=request.study,
        goal=goal,
        objective=request.objective,
        parameters=parameters,
        trials=request.trials,
        sampler=Sampler(seed=1),
        max_train_steps=steps,
        final_train_steps=final if final != steps else None,
        evaluate_every=None if steps is None else max(steps // EVALUATIONS_PER_TRIAL, 1),
        checkpoints=Checkpoints(keep_best=BEST_CHECKPOINTS_KEPT),
        schedule={"kind": "constant"},
        notes=tuple(_notes(request, steps)),
    )


def as_searched_parameter(rung: TunableHyperparameter) -> Parameter:
    """Return a hyperparameter of an optimizer as a searched parameter with its usual range."""
    budget = f"worth tuning with at least {rung.min_trials} trials" if rung.min_trials else "the first hyperparameter to tune"
    why = roles.reason_for_role(rung.name, "nuisance", f"{budget}; the range is wide on purpose")
    return Parameter(role="nuisance", type="float", low=rung.low, high=rung.high, scale=rung.scale, why=why)


def _notes(wish: FirstStudyRequest, steps: int | None) -> list[str]:
    compared_names = [n for n, p in wish.parameters.items() if p.role == "scientific"]
    notes = [ARCHITECTURE_NOTE, f"The optimizer is {wish.optimizer}; its hyperparameters do not suit other optimizers."]
    if compared_names:
        notes.append(FAIR_NOTE)
    notes += [EQUAL_STEPS_NOTE for n in compared_names if parameter_kinds.is_batch_size(n)]
    notes += [MEASURE_NOTE for n in compared_names if parameter_kinds.is_architecture_size(n)]
    regularisers = {n: p for n, p in wish.parameters.items() if parameter_kinds.is_regulariser(n)}
    if not regularisers:
        notes.append(REGULARISATION_NOTE)
    notes.append(EVALUATION_NOTE)
    for name, p in regularisers.items():
        if p.role == "nuisance" and not p.contains(0) and "none" not in map(str, p.options):
            notes.append(LIST_ZERO_NOTE.format(name=name))
    if not any(parameter_kinds.is_batch_size(n) for n in wish.parameters):
        notes.append(f"Choose the batch size by throughput before the first study. {MEASURE_THROUGHPUT_NOTE}")
    if wish.final_train_steps and steps:
        final_steps = f"{wish.final_train_steps:,} steps"
        notes.append(f"Trials of {steps:,} steps answer most questions about {final_steps}; a few long runs follow.")
    return notes
