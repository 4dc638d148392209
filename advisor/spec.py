"""The study spec: what a study searches and why, as a YAML file that people read and `advisor` reads back unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from advisor.space import Domain, Value

Direction = Literal["minimize", "maximize"]
Role = Literal["scientific", "nuisance", "fixed"]
Name = Annotated[str, Field(min_length=1, max_length=500)]


class Objective(BaseModel):
    """The metric that a study optimises, evaluated on validation data, best value over the training of a trial."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    metric: Name
    direction: Direction


class Parameter(Domain):
    """A hyperparameter in a study: its domain or its fixed value, its role for this study's goal, and the reason for both."""

    role: Role = "nuisance"
    value: Value | None = None
    """The value of a fixed parameter."""
    when: Mapping[str, Value] | None = None
    """Condition under which the parameter exists: {other parameter: its value}."""
    why: str | None = None

    @model_validator(mode="after")
    def _check_role(self) -> Self:
        if self.role == "fixed" and self.value is None:
            raise ValueError("a fixed parameter needs a value")
        if self.type == "int" and isinstance(self.value, float) and not self.value.is_integer():
            raise ValueError(f"an int parameter cannot have the value {self.value:g}")
        if self.role != "fixed" and self.value is not None:
            raise ValueError(f"a {self.role} parameter is searched: give low and high or choices, not a value")
        if self.role != "fixed" and not (self.numeric or self.options):
            raise ValueError(f"a {self.role} parameter needs low and high, or choices")
        return self

    @property
    def searched(self) -> bool:
        """Whether the study varies it."""
        return self.role != "fixed" and self.varied


class Sampler(BaseModel):
    """How the trials are drawn. Same kind, seed and space: same trials, on every platform."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["halton", "random"] = "halton"
    seed: Annotated[int, Field(ge=0)] = 0


class StudySpec(BaseModel):
    """One study: one goal, the space it searches, and how its trials are run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    study: Name
    goal: str = ""
    round: Annotated[int, Field(ge=1)] = 1
    parent: str | None = None
    """The study that this one follows from."""
    objective: Objective
    parameters: Mapping[Name, Parameter] = {}
    trials: Annotated[int, Field(ge=1)] | None = None
    sampler: Sampler = Sampler()
    max_train_steps: Annotated[int, Field(ge=1)] | None = None
    evaluate_every: Annotated[int, Field(ge=1)] | None = None
    """Optimizer steps between two evaluations."""
    seeds: Annotated[int, Field(ge=1)] | None = None
    """How often each trial is repeated with another seed."""
    schedule: Mapping[str, Value] | None = None
    """Learning-rate schedule, for example {kind: cosine, warmup_steps: 500}."""
    notes: tuple[str, ...] = ()
    """What to do that a search space cannot say."""

    @model_validator(mode="after")
    def _check_conditions(self) -> Self:
        for name, parameter in self.parameters.items():
            for parent, wanted in (parameter.when or {}).items():
                if parent not in self.parameters:
                    raise ValueError(f"parameter {name!r} depends on {parent!r}, which is not in the study")
                options = self.parameters[parent].options
                if options and wanted not in options:
                    raise ValueError(
                        f"parameter {name!r} waits for {parent} = {wanted!r}, which is none of its choices"
                    )
            if name in self._ancestors(name):
                raise ValueError(f"the conditions of parameter {name!r} run in a circle")
        return self

    def _ancestors(self, name: str) -> set[str]:
        """The parameters that `name` depends on, directly or through others."""
        found: set[str] = set()
        waiting = list(self.parameters[name].when or {})
        while waiting:
            parent = waiting.pop()
            if parent not in found:
                found.add(parent)
                waiting += list(self.parameters[parent].when or {}) if parent in self.parameters else []
        return found

    @property
    def searched(self) -> dict[str, Parameter]:
        """The parameters that the study varies, by name."""
        return {name: p for name, p in self.parameters.items() if p.searched}

    def with_parameter(self, name: str, parameter: Parameter) -> StudySpec:
        """A copy in which `name` is `parameter`; added at the end if it is new."""
        return self.model_copy(update={"parameters": {**self.parameters, name: parameter}})
