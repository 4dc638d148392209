"""Writes the first study of a recipe, from the recipe's study file and the user's lengths, ranges and metric."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from advisor.model.errors import AdvisorError
from advisor.model.prediction import BestNear, Prediction
from advisor.model.space import HyperparameterValue, is_learning_rate
from advisor.model.spec import Direction, Objective, Parameter, StudySpec
from advisor.model.spec_yaml import parse_study_file
from advisor.model.words import listed, setting
from advisor.planning import roles

RECIPE_NAMES = ("sft", "lora", "dpo", "grpo", "pretrain")
RECIPES_WITH_TOKEN_LENGTH = ("sft", "lora", "pretrain")
"""Recipes whose training length may be a number of tokens. A number of tokens does not suit DPO, whose data are pairs, and
GRPO, where the model itself generates the training texts."""
DEFAULT_TOKENS_PER_BATCH = 65_536
"""Default number of tokens in a batch for fine-tuning: 32 sequences of 2,048 tokens."""
DEFAULT_TOKENS_PER_PARAMETER = 20
"""Default number of training tokens per parameter. Chinchilla used 1.4 trillion tokens for 70 billion parameters (Hoffmann et
al. 2022, arXiv:2203.15556)."""
MIN_STEPS_FROM_TOKENS = 10
"""Minimum number of optimizer steps of a study whose length is given in tokens."""
RECIPE_RANGE_NOTE = "Without your values, the recipe searches"
STEP_LAW_NOTE = "Step Law predicts"
"""First words of the notes about Step Law that a recipe adds to a study."""
_RECIPE_FOLDER = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class RecipeRequest:
    """The user's request for the first study of a recipe (options of `advisor init`). None: the recipe's value."""

    recipe: str
    study: str
    metric: str | None = None
    direction: Direction | None = None
    trials: int | None = None
    max_train_steps: int | None = None
    tokens: int | None = None
    batch_tokens: int | None = None
    model_parameters: int | None = None
    """Number of the model's parameters without embeddings; required for pre-training."""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    """Additional hyperparameters, and ranges that replace the recipe's ranges."""


def first_study_of_recipe(wish: RecipeRequest) -> tuple[str, StudySpec]:
    """Return (comment, study): the leading comment of the study file, and the study.

    Raises AdvisorError if the length is too short or nothing is left to tune."""
    comment, spec = read_recipe(wish.recipe)
    objective = Objective(metric=wish.metric or spec.objective.metric, direction=wish.direction or spec.objective.direction)
    spec = spec.model_copy(update={"study": wish.study, "objective": objective})
    if wish.recipe == "pretrain":
        spec = _with_step_law(spec, wish)
    else:
        spec = _with_steps(spec, wish.max_train_steps or spec.max_train_steps or 1)
        if wish.tokens is not None:
            spec = _with_steps_from_tokens(spec, wish.tokens, wish.batch_tokens or DEFAULT_TOKENS_PER_BATCH)
    spec = _with_parameters(spec, wish.parameters)
    if wish.trials is not None and wish.trials != spec.trials:  # the number of listed settings is wrong
        spec = spec.model_copy(update={"trials": wish.trials, "settings": ()})
    # The user's ranges may exclude the predicted values.
    ranges = {n: p for n, p in spec.searched.items() if p.numeric}
    expected = {p: p.expects for p in spec.predictions if isinstance(p.expects, BestNear) and p.expects.parameter in ranges}
    predictions = tuple(p for p, near in expected.items() if ranges[near.parameter].contains(near.value))
    spec = spec.model_copy(update={"predictions": predictions})
    return comment.replace("{metric}", objective.metric), spec


@lru_cache
def read_recipe(recipe: str) -> tuple[str, StudySpec]:
    text = (_RECIPE_FOLDER / f"{recipe}.yaml").read_text("utf-8")
    comment = text[: text.index("\nstudy:") + 1]
    return comment, parse_study_file(text, source=f"recipe {recipe}")


def _with_steps(spec: StudySpec, steps: int) -> StudySpec:
    factor = steps / (spec.max_train_steps or steps)
    schedule = dict(spec.schedule or {})
    schedule["warmup_steps"] = round(factor * float(schedule["warmup_steps"]))
    interval = max(round(factor * (spec.evaluate_every or steps)), 1)
    return spec.model_copy(update={"max_train_steps": steps, "evaluate_every": interval, "schedule": schedule})


def _with_steps_from_tokens(spec: StudySpec, tokens: int, batch_tokens: int) -> StudySpec:
    steps = math.ceil(tokens / batch_tokens)
    if steps < MIN_STEPS_FROM_TOKENS:
        raise AdvisorError(
            f"{tokens:,} tokens are fewer than {MIN_STEPS_FROM_TOKENS} batches of {batch_tokens:,}; pass more --tokens or "
            "a smaller --batch-tokens"
        )
    note = (
        f"{steps:,} steps of {batch_tokens:,} tokens are {_format_large_number(tokens)} training tokens. Set "
        "per_device_train_batch_size * gradient_accumulation_steps * devices * tokens per sequence to this batch size."
    )
    spec = _with_steps(spec, steps)
    return spec.model_copy(update={"notes": (note, *spec.notes)})


def _with_step_law(spec: StudySpec, request: RecipeRequest) -> StudySpec:
    model_size = request.model_parameters
    if model_size is None:
        raise AdvisorError("--recipe pretrain needs the model's number of parameters without embeddings, such as --params 124M")
    tokens = request.tokens or DEFAULT_TOKENS_PER_PARAMETER * model_size
    tokens_per_batch = request.batch_tokens or step_law_batch_size(tokens)
    rate = step_law_learning_rate(model_size, tokens)
    why = (
        f"the first hyperparameter to tune; Step Law predicts {rate:.3g} for {_format_large_number(model_size)} parameters and "
        f"{_format_large_number(tokens)} tokens: 1.79 * N^-0.713 * D^0.307 (arXiv:2503.04715)"
    )
    old = spec.parameters["learning_rate"]
    new = old.model_copy(update={"low": _scaled_rate(old.low, rate), "high": _scaled_rate(old.high, rate), "why": why})
    settings = tuple({"learning_rate": _scaled_rate(setting["learning_rate"], rate)} for setting in spec.settings)
    best = BestNear(parameter="learning_rate", value=_scaled_rate(1, rate))
    update = {"settings": settings, "predictions": (Prediction(rule="step-law", subject="learning_rate", expects=best),)}
    spec = spec.with_parameter("learning_rate", new).model_copy(update=update)
    spec = _with_steps_from_tokens(spec, tokens, tokens_per_batch)
    note = f"{STEP_LAW_NOTE} a batch of {_format_large_number(step_law_batch_tokens(tokens))} tokens: 0.58 * D^0.571."
    if request.batch_tokens is not None:
        note += " Its learning rate suits this batch; a smaller batch needs a lower rate."
    if request.tokens is None:
        ratio = f"{DEFAULT_TOKENS_PER_PARAMETER} tokens per parameter"
        note += f" {ratio} are as in Chinchilla (arXiv:2203.15556); --tokens sets another number."
    return spec.model_copy(update={"notes": (*spec.notes, note)})


def _scaled_rate(factor: HyperparameterValue | None, rate: float) -> float:
    return float(f"{float(factor or 0) * rate:.3g}")


def _with_parameters(spec: StudySpec, own: Mapping[str, Parameter]) -> StudySpec:
    if not own:
        return spec
    names_other_rate = any(is_learning_rate(name) for name in own)
    of_recipe = {n: p for n, p in spec.parameters.items() if not (names_other_rate and is_learning_rate(n))}
    explained = {n: p.model_copy(update={"why": roles.reason_for_role(n, p.role, "set by the user")}) for n, p in own.items()}
    parameters = {**of_recipe, **explained}
    if not any(p.searched for p in parameters.values()):
        raise AdvisorError("everything is fixed, nothing is left to tune; remove a --fix or add --tune NAME=LOW..HIGH")
    is_same_space = {n for n, p in parameters.items() if p.searched} == set(spec.searched) - set(own)
    settings = spec.settings if is_same_space else ()
    replaced = {n: p for n, p in spec.searched.items() if parameters.get(n) is not p}
    notes = []
    for name, p in replaced.items():
        values = listed(map(setting, p.options)) if p.options else f"from {setting(p.low)} to {setting(p.high)}"
        notes.append(f"{RECIPE_RANGE_NOTE} {name} {values}: {p.why}.")
    return spec.model_copy(update={"parameters": parameters, "settings": settings, "notes": (*notes, *spec.notes)})


def recipe_notes(spec: StudySpec) -> tuple[str, ...]:
    """Return the notes of a study that come from a recipe and also hold for later rounds."""
    known_notes = {note for name in RECIPE_NAMES for note in read_recipe(name)[1].notes} if spec.notes else set()
    return tuple(n for n in spec.notes if n in known_notes or n.startswith((RECIPE_RANGE_NOTE, STEP_LAW_NOTE)))


def _format_large_number(number: float) -> str:
    for size, unit in ((1e12, " trillion"), (1e9, " billion"), (1e6, " million")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:,.0f}"


def step_law_learning_rate(parameters: float, tokens: float) -> float:
    """Return the best peak learning rate of pre-training that Step Law predicts (Li et al. 2025, "Predictable Scale: Part I,
    Step Law", arXiv:2503.04715, fitted to 3,700 trainings). We use Step Law only to centre the ranges of the first study.

    parameters: number of the model's parameters without embeddings. tokens: number of training tokens."""
    return float(1.79 * parameters**-0.713 * tokens**0.307)


def step_law_batch_tokens(tokens: float) -> float:
    """Return the predicted best number of tokens in a batch, which does not depend on the model's size."""
    return float(0.58 * tokens**0.571)


def step_law_batch_size(tokens: float) -> int:
    """Return the power of two that, on a logarithmic scale, is nearest to the predicted number of tokens in a batch."""
    return int(2 ** max(round(math.log2(step_law_batch_tokens(tokens))), 0))
