"""The options of `advisor init` that write the first study of a language model from a recipe."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import click
from click.core import ParameterSource

from advisor.cli.options import add_options
from advisor.contract.metric_direction import direction_of_metric
from advisor.execution.engines.devices import find_gpus
from advisor.model import placeholders
from advisor.model.errors import AdvisorError
from advisor.model.spec import Parameter, StudySpec
from advisor.planning.recipes.recipe import RECIPE_NAMES, RECIPES_WITH_TOKEN_LENGTH, RecipeRequest, first_study_of_recipe
from advisor.system.processes import usable_cpus

MAX_TOKENS_OR_PARAMETERS = 10**18
_COUNT_SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_COUNT_VALUE_PATTERN = re.compile(r"^(\d{1,3}(?:,\d{3})+|\d[\d_]*\.?\d*(?:e\d+)?)([kmbt]?)$")
_RECIPE_ONLY_OPTIONS = {"tokens": "--tokens", "batch_tokens": "--batch-tokens", "model_parameters": "--params"}
_OPTIONS_WITHOUT_RECIPE = {
    "optimizer": ("--optimizer", "a recipe trains with AdamW, the trainers' default"),
    "compare": ("--compare", "recipes support no comparison yet; first find a baseline"),
    "final_train_steps": ("--final-train-steps", "pass --max-train-steps, the number of steps of each trial"),
    "find_steps": ("--find-steps", "pass --max-train-steps, the number of steps of each trial"),
}
"""Options that `advisor init` rejects together with --recipe: (option, reason) by the name of the Python parameter."""
_MODEL_OPTION = "--model-name-or-path MODEL"
"""Option for the pretrained model, which TRL's ModelConfig needs and whose value the user must replace."""
_POLICY_LOGGING_OPTION = "--logging-steps 1"
"""Option that makes TRL log a policy's curves at every step instead of every tenth, so that rules can judge short trainings."""
_TRAINER_ARGUMENT_NAMES = {"schedule": "lr_scheduler_type", "max_train_steps": "max_steps", "evaluate_every": "eval_steps"}
"""Names in Transformers' TrainingArguments of the values that placeholders stand for."""


class CountType(click.ParamType[int]):
    """Type of an option whose value is a large number, such as 124M, 2.5B, 1e9 or 50_000."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = _COUNT_VALUE_PATTERN.match(str(value).strip().lower())
        number = float(re.sub("[_,]", "", match[1])) * _COUNT_SUFFIXES[match[2]] if match else 0.0
        if not 1 <= number <= MAX_TOKENS_OR_PARAMETERS:
            self.fail(f"{value!r} is not a number such as 50000, 124M or 2.5B", param, ctx)
        return round(number)


_COUNT = CountType()
recipe_options = add_options(
    click.option(
        "--recipe", type=click.Choice(RECIPE_NAMES), help="Write the first study of a language model, for TRL or Transformers."
    ),
    click.option(
        "--tokens", type=_COUNT, metavar="N", help="Training tokens per trial, for the recipes sft, lora and pretrain."
    ),
    click.option("--batch-tokens", type=_COUNT, metavar="N", help="Tokens per batch, to convert --tokens to steps."),
    click.option(
        "--params", "model_parameters", type=_COUNT, metavar="N", help="Number of parameters to pre-train, without embeddings."
    ),
)


def refuse_recipe_options(lengths: Mapping[str, int | None]) -> None:
    """Raise AdvisorError if the user set an option that needs `--recipe`. lengths: values of these options by parameter name."""
    for name, option in _RECIPE_ONLY_OPTIONS.items():
        if lengths[name] is not None:
            raise AdvisorError(f"{option} works only with --recipe")


def recipe_study(ctx: click.Context, parameters: Mapping[str, Parameter]) -> tuple[str, StudySpec]:
    options = ctx.params
    recipe = str(options["recipe"])
    _check_recipe_options(options, recipe)
    direction = options["direction"]
    if options["metric"] is not None and direction is None:
        direction = direction_of_metric(options["metric"])
        if direction is None:
            raise AdvisorError("--direction is missing: the metric's name does not say in which direction it improves")
    has_file_name = ctx.get_parameter_source("out") is not ParameterSource.DEFAULT
    request = RecipeRequest(
        recipe=recipe,
        study=options["name"] or (options["out"].stem if has_file_name else recipe),
        direction=direction,
        parameters=parameters,
        **{name: options[name] for name in ("metric", "trials", "max_train_steps", *_RECIPE_ONLY_OPTIONS)},
    )
    return first_study_of_recipe(request)


def _check_recipe_options(options: Mapping[str, Any], recipe: str) -> None:
    for name, (option, reason) in _OPTIONS_WITHOUT_RECIPE.items():
        if options[name] is not None:
            raise AdvisorError(f"{option} does not work with --recipe: {reason}")
    if options["model_parameters"] is not None and recipe != "pretrain":
        raise AdvisorError("--params works only with --recipe pretrain")
    if recipe not in RECIPES_WITH_TOKEN_LENGTH and (options["tokens"] or options["batch_tokens"]):
        raise AdvisorError(f"--recipe {recipe} does not accept a number of tokens; pass --max-train-steps")
    if options["max_train_steps"] and (options["tokens"] or options["batch_tokens"] or recipe == "pretrain"):
        raise AdvisorError("the steps follow from --tokens and --batch-tokens; leave out --max-train-steps")
    if options["batch_tokens"] and not options["tokens"] and recipe != "pretrain":
        raise AdvisorError("--batch-tokens needs --tokens, the training tokens of each trial")


def trainer_options(recipe: str, spec: StudySpec, names: Collection[str]) -> str:
    """Return the options that pass the hyperparameters `names` and the study's lengths to a script with TrainingArguments."""
    model_option = [] if recipe == "pretrain" else [_MODEL_OPTION]
    lengths = [name for name in placeholders.needed_placeholders(spec) if name != "seed"]
    evaluations = ["--eval-strategy steps", _transformers_option("evaluate_every")]
    logging = [_POLICY_LOGGING_OPTION] if "num_generations" in spec.parameters else []
    options = [*model_option, *map(_transformers_option, names), *map(_transformers_option, lengths), *evaluations, *logging]
    return " ".join([*options, _transformers_option("seed"), placeholders.TRAINER_OUTPUT_OPTION])


def print_gpu_hint() -> None:
    if not find_gpus() and usable_cpus() > 1:
        click.echo("\nThis machine has no GPU. With `advisor run -j 2`, two trials train at a time.", err=True)


def _transformers_option(placeholder: str) -> str:
    option = placeholders.command_option(placeholder)
    name = _TRAINER_ARGUMENT_NAMES.get(placeholder)
    return option if name is None else f"--{name.replace('_', '-')} {{{placeholder}}}"
