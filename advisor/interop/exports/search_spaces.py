"""Writes search spaces, or trials to run instead of a space, in the formats of AlgoPerf, Hydra, Ray Tune and Weights &
Biases."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import yaml

from advisor.model.errors import AdvisorError
from advisor.model.space import HyperparameterValue
from advisor.model.spec import Parameter, StudySpec

TrialParams: TypeAlias = Sequence[Mapping[str, HyperparameterValue]]

_TRAINING_KEYS = ("max_train_steps", "final_train_steps", "evaluate_every", "checkpoints", "seeds", "schedule", "probe")
"""Keys of a study file that the search formats of other tools cannot express, because the keys describe the training."""


@dataclass(frozen=True, slots=True)
class PastTrial:
    params: Mapping[str, HyperparameterValue]
    value: float | None
    """Best objective value of the trial, or None if the trial failed."""


def require_plain_space(spec: StudySpec, tool: str) -> None:
    """Raise AdvisorError unless the search space consists only of linear ranges, log ranges, choices and fixed values."""
    problems = []
    for name, parameter in spec.parameters.items():
        if parameter.role == "derived":
            problems.append(f"compute {name!r} from other hyperparameters")
        elif parameter.when:
            problems.append(f"search {name!r} only under a condition")
        elif parameter.scale == "reverse-log":
            problems.append(f"search {name!r} on a reverse-log scale")
    if spec.forbidden:
        problems.append("leave out forbidden regions")
    if problems:
        raise AdvisorError(f"{tool} cannot {problems[0]}; --points exports the study's own trials instead of its space")


def study_comments(spec: StudySpec) -> Iterator[str]:
    """Yield comment lines with the study's goal, its notes, and its settings of the training, which other tools cannot express."""
    yield f"# {comment_line(f'{spec.study}: {spec.goal}' if spec.goal else spec.study)}"
    fields = spec.model_dump(mode="json", exclude_defaults=True)
    for key in _TRAINING_KEYS:
        if key in fields:
            yaml_text = yaml.safe_dump(fields[key], default_flow_style=True, width=10**6, sort_keys=False)
            value_text = fields[key] if isinstance(fields[key], str) else yaml_text.removesuffix("\n").removesuffix("\n...")
            yield f"# To be set in the training: {key}: {comment_line(value_text)}"
    yield from (f"# Note: {comment_line(note)}" for note in spec.notes)


def reason_comment(parameter: Parameter) -> str:
    return f"  # {comment_line(parameter.why)}" if parameter.why else ""


def reason_comments(spec: StudySpec) -> Iterator[str]:
    for name, parameter in spec.parameters.items():
        if parameter.why:
            yield f"# {comment_line(name)}: {comment_line(parameter.why)}"


def comment_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def yaml_with_comments(lines: Sequence[str], content: object) -> str:
    return "\n".join(lines) + "\n" + yaml.safe_dump(content, sort_keys=False, width=10**6)


def only_possible_value(parameter: Parameter) -> HyperparameterValue | None:
    if parameter.role == "fixed":
        return parameter.value
    return parameter.options[0] if len(parameter.options) == 1 else None


def parameter_bounds(parameter: Parameter) -> tuple[float, float] | tuple[int, int]:
    """Return the ends (low, high) of the parameter's range. For an integer parameter, both ends are integers inside the range."""
    assert parameter.low is not None
    assert parameter.high is not None
    if parameter.type == "int":
        return -int(-parameter.low // 1), int(parameter.high // 1)
    return parameter.low, parameter.high


_MAX_INTEGERS_IN_RANGE = 1000
"""Maximum number of integers in a range. The exported AlgoPerf file lists every integer."""


def render_algoperf(spec: StudySpec, points: TrialParams | None) -> str:
    """Return tuning_search_space.json without the reasons for the search ranges, because JSON has no comments."""
    for name in spec.parameters:
        if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
            raise AdvisorError(f"AlgoPerf cannot use the name {name!r} as an attribute; use letters, digits and _")
    if points is None:
        require_plain_space(spec, "an AlgoPerf search space")
        return json.dumps({name: _algoperf_domain(name, p) for name, p in spec.parameters.items()}, indent=2) + "\n"
    if any(set(trial) != set(points[0]) for trial in points):
        raise AdvisorError(
            "AlgoPerf's trials must all have the same hyperparameters; fix the hyperparameters that only some trials have"
        )
    return json.dumps([dict(trial) for trial in points], indent=2) + "\n"


def _algoperf_domain(name: str, parameter: Parameter) -> dict[str, Any]:
    if (value := only_possible_value(parameter)) is not None:
        return {"feasible_points": [value]}
    if not parameter.numeric:
        return {"feasible_points": list(parameter.options)}
    low, high = parameter_bounds(parameter)
    if parameter.type != "int":
        return {"min": low, "max": high, "scaling": parameter.scale}
    if parameter.scale == "log" or high - low >= _MAX_INTEGERS_IN_RANGE:
        raise AdvisorError(
            f"an AlgoPerf search space cannot draw {name!r}: integers on a log scale, or more than "
            f"{_MAX_INTEGERS_IN_RANGE:,} of them; --points exports the study's own trials instead of its space"
        )
    return {"feasible_points": list(range(int(low), int(high) + 1))}


def render_ray(spec: StudySpec, points: TrialParams | None) -> str:
    """Return a Python module with `space`, `METRIC`, `MODE` and `NUM_SAMPLES`; `config["trial"]` is the trial to run."""
    lines = [*study_comments(spec), "from ray import tune", "", f"METRIC = {spec.objective.metric!r}"]
    lines.append(f"MODE = {'min' if spec.objective.direction == 'minimize' else 'max'!r}")
    if points is not None:
        lines += ["NUM_SAMPLES = 1", '# config["trial"] contains the hyperparameters of a trial.']
        lines += ['space = {"trial": tune.grid_search(', "    ["]
        lines += [*(f"        {dict(trial)!r}," for trial in points), "    ]", ")}"]
    else:
        require_plain_space(spec, "a Ray Tune space")
        lines.append(f"NUM_SAMPLES = {spec.trials or 10}")
        lines.append(f"# Ray Tune draws at random by default; the study's sampler is {spec.sampler.kind}.")
        domains = (f"    {name!r}: {_ray_domain(p)},{reason_comment(p)}" for name, p in spec.parameters.items())
        lines += ["space = {", *domains, "}"]
    return "\n".join(lines) + "\n"


def _ray_domain(parameter: Parameter) -> str:
    if (value := only_possible_value(parameter)) is not None:
        return repr(value)
    if not parameter.numeric:
        return f"tune.choice({list(parameter.options)!r})"
    low, high = parameter_bounds(parameter)
    if parameter.type == "int":  # Ray excludes the upper end of integer ranges
        return f"tune.{'lograndint' if parameter.scale == 'log' else 'randint'}({low!r}, {int(high) + 1!r})"
    return f"tune.{'loguniform' if parameter.scale == 'log' else 'uniform'}({low!r}, {high!r})"


def render_wandb(spec: StudySpec, points: TrialParams | None) -> str:
    """Return a W&B sweep as YAML. Trials to run become a grid over the key `trial`, in which each value is a trial as JSON."""
    metric = {"name": spec.objective.metric, "goal": str(spec.objective.direction)}
    sweep: dict[str, Any] = {"name": spec.study, "metric": metric}
    lines = list(study_comments(spec))
    if points is not None:
        lines.append("# config.trial contains the hyperparameters of a run as JSON text.")
        trial_texts = [json.dumps(dict(trial)) for trial in points]
        return yaml_with_comments(lines, {**sweep, "method": "grid", "parameters": {"trial": {"values": trial_texts}}})
    require_plain_space(spec, "a W&B sweep")
    if spec.sampler.kind == "halton":
        lines.append("# W&B has no quasi-random search: trials are drawn at random.")
    lines += reason_comments(spec)
    for name, parameter in spec.parameters.items():
        if parameter.type == "int" and parameter.scale == "log":
            lines.append(f"# {comment_line(name)}: W&B passes this integer as a float.")
    sweep["method"] = "bayes" if spec.sampler.kind == "adaptive" else "random"
    sweep["parameters"] = {name: _wandb_domain(p) for name, p in spec.parameters.items()}
    if spec.trials is not None:
        sweep["run_cap"] = spec.trials
    return yaml_with_comments(lines, sweep)


def _wandb_domain(parameter: Parameter) -> dict[str, Any]:
    if (value := only_possible_value(parameter)) is not None:
        return {"value": value}
    if not parameter.numeric:
        return {"values": list(parameter.options)}
    low, high = parameter_bounds(parameter)
    if parameter.type == "int" and parameter.scale == "log":
        return {"distribution": "q_log_uniform_values", "q": 1, "min": low, "max": high}
    distribution = "int_uniform" if parameter.type == "int" else "log_uniform_values" if parameter.scale == "log" else "uniform"
    return {"distribution": distribution, "min": low, "max": high}


_UNQUOTED_WORD_PATTERN = re.compile(r"(?!(?:true|false|null|nan|inf)$)[A-Za-z_][\w./-]*", re.IGNORECASE)
_HYDRA_KEY_PATTERN = re.compile(r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*")


def render_hydra(spec: StudySpec, points: TrialParams | None) -> str:
    """Return a YAML file for Hydra's option `--config-name`. Trials to run become one job each, under the key `trial`."""
    for name in spec.parameters:
        if not _HYDRA_KEY_PATTERN.fullmatch(name):
            raise AdvisorError(f"Hydra cannot use {name!r} as a key; name it with letters, digits, - and .")
    lines = list(study_comments(spec))
    if points is not None:
        lines.append("# Run with --multirun. The key `trial` contains the hyperparameters of a job.")
        trial_texts = (", ".join(f"{name}: {_hydra_text(v)}" for name, v in trial.items()) for trial in points)
        trials = ", ".join(f"{{{text}}}" for text in trial_texts)
        return yaml_with_comments(lines, {"hydra": {"sweeper": {"params": {"+trial": f"choice({trials})"}}}})
    require_plain_space(spec, "a Hydra sweeper")
    lines.append("# Run with --multirun and the plugin hydra-optuna-sweeper.")
    if spec.sampler.kind == "halton":
        lines.append("# The plugin has no quasi-random search: trials are drawn at random.")
    lines += reason_comments(spec)
    sampler = "tpe" if spec.sampler.kind == "adaptive" else "random"
    sweeper = {
        "sampler": {"seed": spec.sampler.seed % 2**32},
        "direction": spec.objective.direction,
        "study_name": spec.study,
        "n_trials": spec.trials or 10,
        "params": {name: _hydra_domain(p) for name, p in spec.parameters.items()},
    }
    defaults = [{"override hydra/sweeper": "optuna"}, {"override hydra/sweeper/sampler": sampler}, "_self_"]
    return yaml_with_comments(lines, {"defaults": defaults, "hydra": {"sweeper": sweeper}})


def _hydra_domain(parameter: Parameter) -> str:
    if (value := only_possible_value(parameter)) is not None:
        return _hydra_text(value)
    if not parameter.numeric:
        for option in parameter.options:
            # Hydra's Optuna plugin would remove quotes around the option.
            if isinstance(option, str) and not _UNQUOTED_WORD_PATTERN.fullmatch(option):
                raise AdvisorError(
                    f"hydra-optuna-sweeper cannot choose {option!r}; make the option a plain word, or use --points"
                )
        return f"choice({', '.join(_hydra_text(option) for option in parameter.options)})"
    low, high = parameter_bounds(parameter)
    interval_text = f"interval({low!r}, {high!r})"
    interval_text = f"tag(log, {interval_text})" if parameter.scale == "log" else interval_text
    return f"int({interval_text})" if parameter.type == "int" else interval_text


def _hydra_text(value: HyperparameterValue) -> str:
    """Return a value in the syntax of Hydra's command line: backslashes before a quote or at the end of a text are doubled."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return repr(value)
    if "${" in value or not value.isprintable():
        raise AdvisorError(f"Hydra cannot express the value {value!r}; choose a simpler value")
    quoted = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), value)
    return f"'{quoted}'"
