"""Defines the content of a study file: the search space of a study, and the reasons for it. The module `spec_yaml` reads and
writes study files as YAML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from advisor.contract.metric_direction import split_of_metric
from advisor.model import formula
from advisor.model.prediction import Prediction
from advisor.model.reading import Reading
from advisor.model.space import Domain, HyperparameterValue

Direction = Literal["minimize", "maximize"]
ParameterRole = Literal["scientific", "nuisance", "fixed", "derived"]
MAX_TRIALS = 1_000_000
"""Maximum number of trials in a study file. Drawing a larger number, probably a typing error, would take hours."""
MAX_SEEDS = 10_000
ProbeKind = Literal["batch-size", "learning-rate", "early-instability", "warmup", "steps"]
MAX_NAME_CHARS = 500
"""Maximum number of characters in a name. Most experiment trackers have a lower limit."""
SAME_IN_ALL_TRIALS = "the same in every trial"
"""Reason for a fixed parameter whose value is the same in all trials. A study file lists parameters with this reason under
`constants`."""
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]


class _SpecPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Objective(_SpecPart):
    """The metric to optimise, which is evaluated on validation data. The result of a trial is its best value of this metric
    during training."""

    metric: Name
    direction: Direction

    @property
    def chosen_on_test_data(self) -> bool:
        """True if the metric's name says that it is computed on test data."""
        return split_of_metric(self.metric) == "test"

    @property
    def final_data(self) -> str:
        return "data that chose no trial" if self.chosen_on_test_data else "the test set"


class SpecEntryError(ValueError):
    """A validation error with the nested keys of the wrong entry, to find its line number."""

    def __init__(self, message: str, *keys: str) -> None:
        super().__init__(message)
        self.keys = keys


class Parameter(Domain):
    """A hyperparameter of a study: its domain or fixed value, its role in the study, and the reasons for both."""

    role: ParameterRole = "nuisance"
    """Scientific: the study compares the parameter's values. Nuisance: the parameter is tuned so that the comparison is fair.
    Fixed: held constant.

    Derived: a formula computes the parameter from other hyperparameters, so that the study can search another parametrisation.
    """
    value: HyperparameterValue | None = None
    """Value of a fixed parameter."""
    searched_in: Domain | None = None
    """Former range of a parameter that was fixed because it mattered little; the final `exploit` study searches this range
    again."""
    formula: str | None = None
    """Formula of a derived parameter, such as `effective_learning_rate * (1 - momentum)`."""
    equals: str | None = None
    """Formula that computes a searched parameter from logged parameters, such as `learning_rate / (1 - momentum)`."""
    when: Mapping[str, HyperparameterValue] | None = None
    """Condition under which the parameter exists: {other parameter: its value}."""
    why: str | None = None
    """Reason for the parameter's role and range."""

    @model_validator(mode="after")
    def _check_role(self) -> Self:
        if self.role == "fixed" and self.value is None:
            raise ValueError("a fixed parameter needs a value")
        if self.type == "int" and isinstance(self.value, float) and not self.value.is_integer():
            raise ValueError(f"an int parameter cannot have the value {self.value:g}")
        low, high = self.declared_limits
        if self.value is not None and not isinstance(self.value, str) and not low <= self.value <= high:
            raise ValueError(f"the value {self.value:g} exceeds the limits, {low:g} to {high:g}")
        if self.role != "fixed" and self.searched_in is not None:
            raise ValueError("only a fixed parameter can have searched_in")
        if self.role not in ("fixed", "derived"):
            if self.value is not None:
                raise ValueError(f"a {self.role} parameter is searched: give low and high or choices, not a value")
            if not (self.numeric or self.options):
                raise ValueError(f"a {self.role} parameter needs low and high, or choices")
        self._check_formulas()
        return self

    def _check_formulas(self) -> None:
        if (self.role == "derived") != (self.formula is not None):
            raise ValueError("a derived parameter needs a formula; no other parameter can have one")
        if self.role == "derived" and (self.numeric or self.choices or self.type in ("categorical", "bool")):
            raise ValueError("a derived parameter takes its value from its formula, not from a range or choices")
        if self.role == "derived" and self.value is not None:
            raise ValueError("a derived parameter takes a formula, not a value")
        if self.equals is not None and not self.searched:
            raise ValueError("only a searched parameter can have `equals`")
        for text in (self.formula, self.equals):
            if text is not None:
                formula.parse_formula(text)

    @property
    def searched(self) -> bool:
        """True if the study varies the parameter."""
        return self.role not in ("fixed", "derived") and self.has_several_values

    def fix_value(self, value: HyperparameterValue, *, why: str) -> Parameter:
        """Return the parameter with a fixed value; its declared limits stay, unless the value lies outside these limits."""
        is_within_limits = isinstance(value, str) or self.declared_limits[0] <= value <= self.declared_limits[1]
        limits = self.limits if is_within_limits else None
        kind = self.type if self.type in ("int", "float") and not isinstance(value, str) else None
        return Parameter(role="fixed", type=kind, value=value, limits=limits, when=self.when, why=why)

    @property
    def domain(self) -> Domain:
        """Range or choices, without the role in the study."""
        return Domain.model_validate({name: getattr(self, name) for name in Domain.model_fields})


class Bounds(_SpecPart):
    """Part of a hyperparameter's domain: some of its choices, or a range. A range without `low` has no lower bound, and a
    range without `high` has no upper bound."""

    model_config = ConfigDict(allow_inf_nan=False)

    low: float | None = None
    high: float | None = None
    choices: Annotated[tuple[HyperparameterValue, ...], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if (self.low is None and self.high is None) == (self.choices is None):
            raise ValueError("give low, high or both, or else choices")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low ({self.low:g}) must not exceed high ({self.high:g})")
        return self

    def contains(self, value: HyperparameterValue) -> bool:
        """Return True if `value` lies within the bounds or on one of their ends; a text never lies within a range."""
        if self.choices is not None:
            return value in self.choices
        if isinstance(value, str):
            return False
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)


class Region(_SpecPart):
    """A region of the search space from which no trials are drawn. A point is in the region if it satisfies all of the region's
    bounds."""

    where: Annotated[Mapping[Name, Bounds], Field(min_length=1)]
    why: str | None = None

    def contains(self, trial: Mapping[str, HyperparameterValue]) -> bool:
        """Return True if a trial {parameter: value} lies in the region, or False if the trial lacks a bounded parameter."""
        return all(name in trial and bounds.contains(trial[name]) for name, bounds in self.where.items())


class Checkpoints(_SpecPart):
    """Which checkpoints each trial keeps, so that the best step can be selected afterwards."""

    keep_best: Annotated[int, Field(ge=1)] | None = None
    """Number of checkpoints with the best objective values to keep."""
    every: Annotated[int, Field(ge=1)] | None = None
    """Number of optimizer steps between two checkpoints."""


class Sampler(_SpecPart):
    """How the settings of the trials are drawn. On every platform, the same kind, seed and search space yield the same trials,
    unless the sampler is adaptive."""

    kind: Literal["halton", "random", "adaptive"] = "halton"
    seed: Annotated[int, Field(ge=0)] = 0


class StudySpec(_SpecPart):
    """The content of a study file: the study's goal, its search space, and how its trials are run."""

    study: Name
    goal: str = ""
    round: Annotated[int, Field(ge=1)] = 1
    parent: str | None = None
    """Name of the preceding study."""
    objective: Objective
    parameters: Mapping[Name, Parameter] = {}
    forbidden: tuple[Region, ...] = ()
    """Regions of the search space in which no trial is drawn, because earlier trials failed there."""
    settings: tuple[Mapping[Name, HyperparameterValue], ...] = ()
    """Settings of the searched parameters to train in this order, instead of settings drawn from the search space."""
    trials: Annotated[int, Field(ge=1, le=MAX_TRIALS)] | None = None
    sampler: Sampler = Sampler()
    max_train_steps: Annotated[int, Field(ge=1)] | None = None
    evaluate_every: Annotated[int, Field(ge=1)] | None = None
    """Number of optimizer steps between two evaluations."""
    checkpoints: Checkpoints | None = None
    seeds: Annotated[int, Field(ge=1, le=MAX_SEEDS)] | None = None
    """Number of seeds with which each trial is repeated."""
    schedule: Mapping[str, HyperparameterValue] | None = None
    """Learning-rate schedule, for example {kind: cosine, warmup_steps: 500}."""
    notes: tuple[str, ...] = ()
    """Advice to the user that is no part of the search space."""
    predictions: tuple[Prediction, ...] = ()
    """Predicted effects of the advice that this study follows; `advisor analyze` judges them after the trials have ended."""
    final_train_steps: Annotated[int, Field(ge=1)] | None = None
    """Number of optimizer steps of the final model if trials are shorter; the Deep Learning Tuning Playbook calls it the
    production length."""
    probe: ProbeKind | None = None
    """Kind of diagnostic measurement if the study does not compare settings (see `advisor.contract.TAG_PROBE`), or None for normal
    studies."""
    starts_from: Mapping[str, Annotated[float, Field(allow_inf_nan=False)]] | None = None
    """Inputs that a probe's settings are computed from, such as {unstable_learning_rate: 0.1, times: 10}."""
    reading: Reading | None = None
    """The user's decisions about how to read the experiment."""
    baseline: StudySpec | None = None
    """The study to run after this probe, with settings that follow from the probe's results."""

    @model_validator(mode="after")
    def _check_parameters(self) -> Self:
        for name, parameter in self.parameters.items():
            self._check_condition(name, parameter)
            self._check_names(name, "formula", parameter.formula)
            self._check_names(name, "equals", parameter.equals)
        conditions = {n: p.when for n, p in self.parameters.items() if p.when}
        self._reject_cycle("when", "the conditions of parameter {!r} are circular", conditions)
        formulas = {n: _names_in_formula(p.formula) for n, p in self.parameters.items()}
        self._reject_cycle("formula", "the formula of {!r} is circular", formulas)
        in_regions = [("forbidden", str(i), "where", name) for i, part in enumerate(self.forbidden) for name in part.where]
        for keys in (*in_regions, *(("settings", str(i), name) for i, part in enumerate(self.settings) for name in part)):
            if keys[-1] not in self.parameters:
                raise SpecEntryError(f"{keys[-1]!r} is not in the study", *keys)
        return self

    def _reject_cycle(self, key: str, message: str, dependencies: Mapping[str, Iterable[str]]) -> None:
        try:
            TopologicalSorter(dependencies).prepare()
        except CycleError as error:
            name: str = min(error.args[1], key=list(self.parameters).index)
            raise SpecEntryError(message.format(name), "parameters", name, key) from None

    def _check_condition(self, name: str, parameter: Parameter) -> None:
        for parent, required in (parameter.when or {}).items():
            keys = ("parameters", name, "when", parent)
            if parent not in self.parameters:
                raise SpecEntryError(f"parameter {name!r} depends on {parent!r}, which is not in the study", *keys)
            if self.parameters[parent].role == "derived":
                raise SpecEntryError(f"parameter {name!r} cannot depend on {parent!r}, which is derived", *keys)
            options = self.parameters[parent].options
            if options and required not in options:
                raise SpecEntryError(
                    f"parameter {name!r} requires {parent} = {required!r}, which is not one of its choices", *keys
                )

    def _check_names(self, name: str, key: str, text: str | None) -> None:
        for other in sorted(_names_in_formula(text)):
            if other not in self.parameters:
                raise SpecEntryError(f"{text!r} refers to {other!r}, which is not in the study", "parameters", name, key)
            if other == name:
                raise SpecEntryError(f"{text!r} refers to {name!r} itself", "parameters", name, key)

    def with_computed_values(self, trial: Mapping[str, HyperparameterValue]) -> dict[str, HyperparameterValue]:
        """Return the trial {parameter: value} with all further parameters that `formula` and `equals` compute from it. A
        parameter is left out if its condition is not met, or if its value is not finite."""
        values = dict(trial)
        formulas = {n: t for n, p in self.parameters.items() if n not in trial and (t := p.formula or p.equals)}
        while formulas:
            computed_values = {n: v for n, text in formulas.items() if (v := self._computed_value(n, text, values)) is not None}
            if not computed_values:
                break
            values |= computed_values
            formulas = {n: text for n, text in formulas.items() if n not in computed_values}
        return values

    def _computed_value(self, name: str, text: str, trial: Mapping[str, HyperparameterValue]) -> HyperparameterValue | None:
        parameter = self.parameters[name]
        if any(trial.get(parent) != required for parent, required in (parameter.when or {}).items()):
            return None
        value = formula.parse_formula(text).value(trial)
        return round(value) if value is not None and parameter.type == "int" else value

    def forbidden_region_of(self, trial: Mapping[str, HyperparameterValue]) -> Region | None:
        """Return the first forbidden region that contains the trial {parameter: value}, if any."""
        return next((region for region in self.forbidden if region.contains(trial)), None)

    @property
    def searched(self) -> dict[str, Parameter]:
        """The parameters that the study varies, by name."""
        return {name: p for name, p in self.parameters.items() if p.searched}

    @property
    def fixed_values(self) -> dict[str, HyperparameterValue]:
        return {n: p.value for n, p in self.parameters.items() if p.role == "fixed" and p.value is not None}

    def searches_within(self, other: StudySpec) -> bool:
        """Return True if the other study's search space contains every range and choice that this study searches."""
        other_parameters = other.searched
        for name, new in self.searched.items():
            old = other_parameters.get(name)
            if old is None or old.numeric != new.numeric:
                return False
            bounds_or_choices = (new.low, new.high) if new.low is not None and new.high is not None else new.options
            if not all(old.contains(end) for end in bounds_or_choices):
                return False
        return True

    def fix_value(self, name: str, value: HyperparameterValue, *, why: str) -> Parameter:
        """Return the parameter fixed at `value`. A constant with this value keeps its own reason."""
        constant = Parameter(role="fixed", value=value, why=SAME_IN_ALL_TRIALS)
        return constant if self.parameters.get(name) == constant else constant.model_copy(update={"why": why})

    def with_parameter(self, name: str, parameter: Parameter) -> StudySpec:
        """Return a copy of the study with the parameter; a new parameter comes last."""
        return self.model_copy(update={"parameters": {**self.parameters, name: parameter}})


def _names_in_formula(text: str | None) -> frozenset[str]:
    return formula.parse_formula(text).names if text is not None else frozenset()
