"""Infers the search space of a study from its trials."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from advisor.model.parameter_kinds import can_be_fractional
from advisor.model.space import AxisScale, FloatArray, HyperparameterValue, ParameterType, Params, scale_of_new_range
from advisor.model.spec import MAX_NAME_CHARS, SAME_IN_ALL_TRIALS, Parameter

_NON_HYPERPARAMETER_PATTERN = re.compile(
    r"(^|[_./-])(seed|seeds|random_state|run|run_id|run_name|uuid|guid|hash|host|hostname|path|paths|dir|directory|folder|file|"
    r"url|uri|(?<!per_)device|rank|local_rank|world_size|gpu|gpus|pid|port|timestamp|date|time|user|git|commit|version|checkpoint|resume|"
    r"verbose|debug|log_level|workers|num_workers|project|experiment|output|report_to|"
    r"(eval|evaluation|val|valid|validation|test|inference|predict)_batch_size|"
    r"(log|logging|save|saving|eval|evaluation)_(steps|strategy|every|interval|freq|frequency|delay))($|[_./-])",
    re.IGNORECASE,
)
_TRIAL_NUMBER_NAME_PATTERN = re.compile(
    r"^(number|attempt|repeat|repetition|replicate)$|"
    r"(^|[_./-])((trial|job|array_task)_?(id|number|num|no|nr|index|idx|name)|trial|(cv_?)?fold(_?(id|number|num|no|nr|index|idx))?)$",
    re.IGNORECASE,
)
"""Numbers of trials, jobs or cross-validation folds."""
_RUN_NAME_PARAMETER_PATTERN = re.compile(
    r"^((run|exp|expt|experiment|trial|job|sweep|wandb|study|session)[_-]?(name|tag|label|title|group)|"
    r"name|tags?|notes?|comments?|description|desc|title|group|label)$",
    re.IGNORECASE,
)
"""Names of runs or of groups of runs."""
_LOG_SCALE_NAME_PATTERN = re.compile(
    r"(^|[_./-])(lr|learning_rate|weight_decay|wd|eps|epsilon|l1|l2|lambda|alpha)($|[_./-])|learning_rate|weight_decay",
    re.IGNORECASE,
)
_LABEL_PATTERN = re.compile(
    r"(/|~|\.{1,2}/|[A-Za-z]:\\|\w+://)\S+|.*\d{4}-?\d\d-?\d\d.*|(?=.*\d)[0-9a-fA-F-]{8,}|[^\s/]*/[^\s/]*/\S*"
)
"""A path, a URL, a date or a hash."""
_MIN_DUPLICATE_VALUES = 3
"""Minimum different values at which two equal hyperparameters count as duplicates."""
_NONE_WORDS = ("none", "null")
_MISSING_VALUE_WORDS = (*_NONE_WORDS, "nan")
_BOOL_BY_WORD = {"true": True, "false": False}


def parse_value(text: str) -> HyperparameterValue | None:
    """Parse a logged parameter as bool, int, float or text; None for "None", "null", "nan" and ""."""
    stripped_text = text.strip()
    if not stripped_text:
        return None
    if stripped_text[0].isalpha():
        lowercase_text = stripped_text.lower()
        return None if lowercase_text in _MISSING_VALUE_WORDS else _BOOL_BY_WORD.get(lowercase_text, stripped_text)
    if len(stripped_text) > 40:  # too long for a number; int() is slow for thousands of digits
        return stripped_text
    try:
        if "." not in stripped_text:
            return int(stripped_text)
    except ValueError:
        pass
    try:
        number = float(stripped_text)
    except ValueError:
        return stripped_text
    return number if math.isfinite(number) else stripped_text


def is_trial_number(name: str) -> bool:
    return bool(_TRIAL_NUMBER_NAME_PATTERN.search(name))


def parse_params(
    logged_params: Sequence[Mapping[str, str]], *, with_none: Collection[str] = ()
) -> list[dict[str, HyperparameterValue]]:
    """Return the hyperparameters of each trial, shape (trials,), without seeds, paths and other labels; values of a name have
    one type. with_none: parameters in which the word None is always a value; for others, `_none_is_choice` decides."""
    trials = [
        {k: v for k, t in params.items() if 0 < len(k) <= MAX_NAME_CHARS and (v := parse_value(t)) is not None}
        for params in logged_params
    ]
    all_names = {name for params in trials for name in params}
    candidates = sorted(n for n in all_names if not (_NON_HYPERPARAMETER_PATTERN.search(n) or is_trial_number(n)))
    names = [name for name in candidates if not _is_trial_identifier(name, [p[name] for p in trials if name in p], len(trials))]
    _add_none_choices(trials, logged_params, names, with_none)
    for name in names:
        _unify_types(trials, name)
    return [{name: params[name] for name in names if name in params} for params in trials]


def exact_key(params: Params) -> str:
    """Return a key that is equal only for exactly equal settings, unlike `setting_key`, which rounds numbers."""
    return repr(sorted(params.items()))


def logged_same_parameters(logged_params: Sequence[Mapping[str, str]]) -> bool:
    """Return whether all trials logged the same parameters without missing values, so that no parsed one is missing."""
    texts = {text.strip().lower() for params in logged_params for text in params.values()}
    return len({frozenset(params) for params in logged_params}) == 1 and texts.isdisjoint(("", *_MISSING_VALUE_WORDS))


def _add_none_choices(
    parsed: list[dict[str, HyperparameterValue]],
    logged_params: Sequence[Mapping[str, str]],
    names: Sequence[str],
    always: Collection[str],
) -> None:
    none_trials = {}
    for name in names:
        trials_without = [i for i, params in enumerate(parsed) if name not in params]
        if rows := [i for i in trials_without if logged_params[i].get(name, "").strip().lower() in _NONE_WORDS]:
            none_trials[name] = rows
    none_choices = [name for name, rows in none_trials.items() if name in always or _none_is_choice(name, rows, parsed, names)]
    for name in none_choices:
        for i in none_trials[name]:
            parsed[i][name] = "None"


def _none_is_choice(name: str, unset: Sequence[int], parsed: Sequence[Params], names: Sequence[str]) -> bool:
    """Return whether None is a choice, not a missing value: no other parameter's value determines which trials have the
    parameter (Adam has no momentum), and its values are no numbers that rarely repeat, as in a range."""
    values = [p[name] for p in parsed if name in p]
    options = set(values)
    if not any(isinstance(v, str | bool) for v in values) and len(options) > 1 and 2 * len(options) > len(values):
        return False
    trials_without = set(unset)
    trials_with_value = {i for i, p in enumerate(parsed) if name in p}
    if min(len(trials_without), len(trials_with_value)) < 2:
        return True
    for switch in names:
        column = {i: parsed[i][switch] for i in trials_without | trials_with_value if switch in parsed[i]}
        if switch == name or len(column) < len(trials_without | trials_with_value):
            continue
        is_separate = {column[i] for i in trials_without}.isdisjoint(column[i] for i in trials_with_value)
        if is_separate and 2 * len(set(column.values())) <= len(column):
            return False
    return True


def _is_trial_identifier(name: str, values: Sequence[HyperparameterValue], trials: int) -> bool:
    texts = [v for v in values if isinstance(v, str)]
    if texts and _RUN_NAME_PARAMETER_PATTERN.search(name):
        return True
    if len(texts) == len(values) >= 2 and len(set(texts)) == len(texts) and all(_LABEL_PATTERN.fullmatch(t) for t in texts):
        return True
    return len(texts) > max(5, trials / 2) and len(set(texts)) > 0.9 * len(texts)


def _unify_types(parsed: list[dict[str, HyperparameterValue]], name: str) -> None:
    value_types = {type(p[name]) for p in parsed if name in p}
    if len(value_types) == 1:
        return
    target = float if value_types <= {int, float} else str
    for params in parsed:
        if name in params:
            params[name] = target(params[name])


def infer_parameter(name: str, values: Sequence[HyperparameterValue]) -> Parameter:
    """Infer the domain of a parameter from the trials' values, shape (n,). One value in all trials is fixed."""
    options = sorted(set(values), key=lambda v: (str(type(v)), v))
    if len(options) == 1:
        return Parameter(role="fixed", value=options[0], why=SAME_IN_ALL_TRIALS)
    if isinstance(options[0], bool):
        return Parameter(role="scientific", type="bool", why="inferred: both values were used")
    if isinstance(options[0], str):
        choices = tuple(options)
        return Parameter(role="scientific", type="categorical", choices=choices, why="inferred: the values that trials used")
    numbers = np.array(options, dtype=np.float64)
    low, high, scale = float(numbers.min()), float(numbers.max()), infer_scale(numbers, name)
    kind: ParameterType = "int" if isinstance(options[0], int) and not can_be_fractional(name) else "float"
    why = "inferred: the smallest and the largest value that trials used"
    return Parameter(type=kind, low=low, high=high, scale=scale, why=why)


def infer_scale(values: FloatArray, name: str = "") -> AxisScale:
    """Return the scale on which the different values, shape (n,), are most evenly spaced. A log scale needs positive values
    whose ratio is at least 4; learning rates and regularisation strengths have it over at least one decade, and momentum and
    betas a reverse-log scale if their distances from 1 span one."""
    sorted_values = np.unique(values)
    if scale_of_new_range(name, float(sorted_values[0]), float(sorted_values[-1]), "linear") == "reverse-log":
        return "reverse-log"
    if sorted_values[0] <= 0 or sorted_values[-1] / sorted_values[0] < 4:
        return "linear"
    if _LOG_SCALE_NAME_PATTERN.search(name) and sorted_values[-1] / sorted_values[0] >= 10:
        return "log"
    if len(sorted_values) < 3:
        return "log" if sorted_values[-1] / sorted_values[0] >= 10 else "linear"
    return "log" if _gap_unevenness(np.log(sorted_values)) < _gap_unevenness(sorted_values) else "linear"


def _gap_unevenness(ordered: FloatArray) -> float:
    """Return the Kolmogorov-Smirnov distance of the values from a uniform distribution over their range."""
    position = (ordered - ordered[0]) / (ordered[-1] - ordered[0])
    return float(np.abs(position - np.linspace(0, 1, len(position))).max())


def infer_parameters(params: Sequence[Params]) -> dict[str, Parameter]:
    """Return a parameter for every hyperparameter of the trials, in alphabetical order."""
    names = sorted({name for trial in params for name in trial})
    parameters = {name: infer_parameter(name, [trial[name] for trial in params if name in trial]) for name in names}
    switches = [name for name, p in parameters.items() if p.searched and p.options]
    for name, parameter in parameters.items():
        condition = _existence_condition(name, switches, params) if parameter.searched else None
        if condition is not None:
            parameters[name] = parameter.model_copy(update={"when": condition})
    return parameters


def _existence_condition(name: str, switches: Sequence[str], params: Sequence[Params]) -> dict[str, HyperparameterValue] | None:
    """Return {switch: value} if exactly the trials with this value have the parameter `name`, with at least two trials on each
    side. Of several switches, return the one that most trials have, then the first by name. Conditions are not circular,
    because more trials have a switch than the parameters that depend on it."""
    trials_with_parameter = {i for i, trial in enumerate(params) if name in trial}
    if len(trials_with_parameter) == len(params):
        return None
    candidates: list[tuple[int, str, HyperparameterValue]] = []
    for switch in switches:
        switch_values = {i: trial[switch] for i, trial in enumerate(params) if switch in trial}
        values = {switch_values.get(i) for i in trials_with_parameter}
        value = values.pop() if len(values) == 1 else None
        if value is None:
            continue
        on = {i for i, v in switch_values.items() if v == value}
        if on == trials_with_parameter and len(on) >= 2 and len(switch_values) - len(on) >= 2:
            candidates.append((-len(switch_values), switch, value))
    if not candidates:
        return None
    _, switch, value = min(candidates, key=lambda f: f[:2])
    return {switch: value}


def find_duplicate_parameters(params: Sequence[Params], preferred_names: Collection[str]) -> dict[str, str]:
    """Return {duplicate: original} for varying numbers that are equal in every trial, because tools log hyperparameters again
    under their own names. The original is the one in `preferred_names`, or else the shortest name."""
    columns: dict[tuple[HyperparameterValue | None, ...], list[str]] = {}
    for name in sorted({n for trial in params for n in trial}):
        column = tuple(trial.get(name) for trial in params)
        used_values = {v for v in column if v is not None}
        if len(used_values) >= _MIN_DUPLICATE_VALUES and not any(isinstance(v, (str, bool)) for v in used_values):
            columns.setdefault(column, []).append(name)
    originals: dict[str, str] = {}
    for names in columns.values():
        original = min(names, key=lambda name: (name not in preferred_names, len(name), name))
        originals |= {name: original for name in names if name != original and name not in preferred_names}
    return originals


def infer_max_steps(declared: Sequence[float], last_steps: Sequence[int]) -> int | None:
    """Return the most frequent declared number of steps, or else the most frequent last step above 1, because results that were
    logged once after the training have the steps 0 and 1."""
    planned_steps = [int(d) for d in declared if math.isfinite(d) and d >= 1]
    if planned_steps:
        return Counter(planned_steps).most_common(1)[0][0]
    positive_steps = [s for s in last_steps if s > 1]
    return Counter(positive_steps).most_common(1)[0][0] if positive_steps else None
