"""The plan `initial`: the first study, from nothing but an optimizer and a budget.

Playbook: "Choosing the initial configuration", "How should Adam's hyperparameters be tuned?", "Identifying scientific, nuisance,
and fixed hyperparameters".

*What calls for it.* `advisor init`: a project without a study.

*What it does.* A simple, fast start: a constant learning rate, no regularisation that is not asked for, one goal. Which of the
optimizer's hyperparameters are tuned depends on the number of trials. Adam and its kin, by the playbook's ladder: with fewer than
10, the learning rate; from 10, beta1 too; from 25, epsilon too; with substantially more, from 50 (ours), beta2 too. SGD: the
learning rate and, from 10, the momentum, which is close to 1 and therefore searched by orders of magnitude of its distance from
it. Where values are compared, the trials for each of them count. The others are fixed at the values that optimizers come with; what
the user states under another name (`lr`) takes the place of the ladder's own. Where the final training is to be long
(`final_train_steps`), trials take a tenth of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from advisor.model import parameter_kinds
from advisor.model.errors import AdvisorError
from advisor.model.space import is_learning_rate, words_of
from advisor.model.spec import Checkpoints, Objective, Parameter, Sampler, StudySpec
from advisor.planning import roles
from advisor.planning.designs.batch_sweep import PROBE
from advisor.planning.designs.rounds import SHORT

EVALUATIONS = 50
"""Evaluations over a training, enough for curves that show overfitting, saturation and instability."""
KEPT = 1
"""Best checkpoints that are kept, so that each trial is judged by its best step."""
REGULARISE = (
    "Add no regularisation yet, unless the problem is known to need it: the report says when the best trials overfit, and adds "
    "dropout, label smoothing or weight decay to the study then."
)


@dataclass(frozen=True)
class Rung:
    """A hyperparameter of an optimizer, and from how many trials on it is tuned."""

    name: str
    fewest: int
    default: float
    """Its value below that."""
    low: float
    high: float
    scale: str = "log"


_RATE = Rung("learning_rate", 0, 1e-3, 1e-5, 1e-1)
_ADAM = (
    _RATE,
    Rung("beta1", 10, 0.9, 0.5, 0.99, "reverse-log"),
    Rung("epsilon", 25, 1e-8, 1e-10, 1e-3),
    Rung("beta2", 50, 0.999, 0.9, 0.9999, "reverse-log"),
)
_SHORT = {"epsilon": "eps"}
_MOMENTUM = Rung("momentum", 10, 0.9, 0.5, 0.99, "reverse-log")
LADDERS: Mapping[str, tuple[Rung, ...]] = {
    "adam": _ADAM,
    "adamw": _ADAM,
    "nadam": _ADAM,
    "sgd": (Rung("learning_rate", 0, 1e-1, 1e-3, 1e1), _MOMENTUM),
    "nesterov": (Rung("learning_rate", 0, 1e-1, 1e-3, 1e1), _MOMENTUM),
    "rmsprop": (_RATE, _MOMENTUM, Rung("epsilon", 25, 1e-8, 1e-10, 1e-3)),
}
"""By optimizer; ranges are wide on purpose: the report says where to move and narrow them."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What is known of a project before its first study."""

    study: str
    objective: Objective
    optimizer: str
    trials: int
    max_train_steps: int | None = None
    final_train_steps: int | None = None
    given: Mapping[str, Parameter] = field(default_factory=dict)
    """Further hyperparameters, or other ranges than the ladder's."""


def initial(wish: Wish) -> StudySpec:
    """The first study."""
    steps, final = wish.max_train_steps, wish.final_train_steps
    if steps is None and final is not None:
        steps = max(round(SHORT * final), 1)
    each = _trials_for_each(wish)
    parameters = {
        r.name: _parameter(r, each, wish)
        for r in LADDERS[wish.optimizer]
        if r.name in wish.given or not any(_is(r.name, name, wish.optimizer) for name in wish.given)
    }
    given = {
        n: p if p.why else p.model_copy(update={"why": roles.why(n, p.role, "as stated")})
        for n, p in wish.given.items()
    }
    tuned = [n for n, p in {**parameters, **given}.items() if p.searched and p.role == "nuisance"]
    compared = [n for n, p in given.items() if p.role == "scientific"]
    if not tuned and not compared:
        raise AdvisorError(
            "everything is fixed, nothing is left to tune; leave a --fix out, or add --tune NAME=LOW..HIGH"
        )
    what = f"with {', '.join(tuned)} tuned for each" if tuned else "all else as it is"
    goal = f"Compare {', '.join(compared)}: {what}" if compared else f"Find a baseline: {', '.join(tuned)}"
    return StudySpec(
        study=wish.study,
        goal=goal,
        objective=wish.objective,
        parameters={**parameters, **given},
        trials=wish.trials,
        sampler=Sampler(seed=1),
        max_train_steps=steps,
        final_train_steps=final if final != steps else None,
        evaluate_every=None if steps is None else max(steps // EVALUATIONS, 1),
        checkpoints=Checkpoints(keep_best=KEPT),
        schedule={"kind": "constant"},
        notes=tuple(_notes(wish, steps)),
    )


def _trials_for_each(wish: Wish) -> int:
    """The trials that each of the compared values gets."""
    values = math.prod(len(p.options) or 1 for p in wish.given.values() if p.role == "scientific")
    return max(wish.trials // values, 1)


def _is(rung: str, name: str, optimizer: str) -> bool:
    """Whether a hyperparameter of this name is that of the ladder: lr, adam_beta1, eps."""
    said = "".join(words_of(name)).removeprefix(optimizer)
    return is_learning_rate(name) if rung == "learning_rate" else said in (rung, _SHORT.get(rung))


def _parameter(rung: Rung, trials: int, wish: Wish) -> Parameter:
    if trials < rung.fewest:
        few = f"{trials} trials" if trials == wish.trials else f"{trials} trials for each value"
        why = f"{few} are too few to tune it, it takes {rung.fewest}; the value that {wish.optimizer} comes with"
        return Parameter(role="fixed", value=rung.default, why=why)
    budget = "the first to tune" if not rung.fewest else f"tuned from {rung.fewest} trials on"
    return Parameter.model_validate(
        {
            "role": "nuisance",
            "type": "float",
            "low": rung.low,
            "high": rung.high,
            "scale": rung.scale,
            "why": roles.why(rung.name, "nuisance", f"{budget}, in a range that is wide on purpose"),
        }
    )


def _notes(wish: Wish, steps: int | None) -> list[str]:
    notes = [f"The optimizer is {wish.optimizer}: its hyperparameters mean nothing to another one."]
    if not any(parameter_kinds.is_regulariser(n) for n in wish.given):
        notes.append(REGULARISE)
    if not any(parameter_kinds.is_batch_size(n) for n in wish.given):
        notes.append(f"Choose the batch size by throughput before the first study. {PROBE}")
    if wish.final_train_steps and steps:
        notes.append(
            f"Trials of {steps:,} steps answer most questions about a training of {wish.final_train_steps:,}; few long runs follow."
        )
    return notes
