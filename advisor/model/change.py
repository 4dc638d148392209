"""Defines the changes that findings recommend. Each change is a typed edit of the next study's file."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field

from advisor.model.frozen import FrozenModel
from advisor.model.space import AxisScale, HyperparameterValue, is_training_length, is_transformers_schedule_name, setting_key
from advisor.model.spec import Parameter, Region, StudySpec
from advisor.model.study import Study


class SetRange(FrozenModel):
    """Changes the range in which a hyperparameter is searched."""

    kind: Literal["set-range"] = "set-range"
    parameter: str
    low: float
    high: float
    scale: AxisScale
    why: str
    limited: bool = False
    """True if no later study may exceed the high end, because the machine cannot train with higher values."""

    def apply(self, spec: StudySpec) -> StudySpec:
        """Return the spec with the new range within the declared limits. A parameter that was not searched becomes nuisance."""
        old = spec.parameters.get(self.parameter)
        role = "nuisance" if old is None or old.role in ("fixed", "derived") else old.role
        kind = old.type if old is not None and old.type in ("int", "float") else "float"
        old_fields: dict[str, Any] = {"when": old.when, "equals": old.equals, "limits": old.limits} if old is not None else {}
        lowest, highest = old.declared_limits if old is not None else (self.low, self.high)
        low, high = max(self.low, lowest), min(self.high, highest)
        if self.limited:
            old_fields["limits"] = (old.limits[0] if old is not None and old.limits is not None else None, high)
        new = Parameter(role=role, type=kind, low=low, high=high, scale=self.scale, why=self.why, **old_fields)
        return spec.with_parameter(self.parameter, new)


class FixParameter(FrozenModel):
    """Fixes a hyperparameter, so that it is no longer searched."""

    kind: Literal["fix"] = "fix"
    parameter: str
    value: HyperparameterValue
    why: str
    for_now: bool = False
    """True if the final study, with an adaptive sampler, searches the hyperparameter again."""
    new_scores: bool = False
    """True if results with this value are not comparable with earlier results, as after a change of the completion length."""

    def apply(self, spec: StudySpec) -> StudySpec:
        old = spec.parameters.get(self.parameter)
        kept_fields: dict[str, Any] = {} if old is None else {"type": old.type, "limits": old.limits, "when": old.when}
        former_domain = old.domain if old is not None and old.searched and self.for_now else None
        new = Parameter(role="fixed", value=self.value, searched_in=former_domain, why=self.why, **kept_fields)
        return spec.with_parameter(self.parameter, new)


class DropValues(FrozenModel):
    """Removes values of a hyperparameter from a comparison, and all hyperparameters that exist only with these values."""

    kind: Literal["drop-values"] = "drop-values"
    parameter: str
    values: tuple[HyperparameterValue, ...]
    why: str

    def apply(self, spec: StudySpec) -> StudySpec:
        """Return the spec without the dropped values, or unchanged if fewer than two values would remain."""
        old = spec.parameters.get(self.parameter)
        remaining_choices = () if old is None else tuple(v for v in old.choices or () if v not in self.values)
        if old is None or len(remaining_choices) < 2:
            return spec
        other_parameters = {n: p for n, p in spec.parameters.items() if (p.when or {}).get(self.parameter) not in self.values}
        new = old.model_copy(update={"choices": remaining_choices, "why": self.why})
        return spec.model_copy(update={"parameters": {**other_parameters, self.parameter: new}})


class AddParameter(FrozenModel):
    """Adds a hyperparameter to the search, such as a regulariser, a warmup or a clipping threshold."""

    kind: Literal["add"] = "add"
    name: str
    parameter: Parameter

    def apply(self, spec: StudySpec) -> StudySpec:
        old = spec.parameters.get(self.name)
        if old is not None and old.searched:
            return spec
        return spec.with_parameter(self.name, self.parameter)


class SetField(FrozenModel):
    """Sets one field of the study: its number of steps, trials or seeds, or the interval between evaluations."""

    kind: Literal["set-field"] = "set-field"
    field: Literal["max_train_steps", "trials", "evaluate_every", "seeds"]
    value: Annotated[int, Field(ge=1)]
    why: str

    def apply(self, spec: StudySpec) -> StudySpec:
        """Return the spec with the new value; `max_train_steps` also scales fixed hyperparameters that count epochs or steps."""
        new_spec = spec.model_copy(update={self.field: self.value})
        if self.field != "max_train_steps" or not spec.max_train_steps:
            return new_spec
        for name, parameter in spec.parameters.items():
            length = parameter.value
            if is_training_length(name) and isinstance(length, int | float) and not isinstance(length, bool) and length > 0:
                # Round up, because a run must not end before its last planned step.
                scaled_length = max(math.ceil(length * self.value / spec.max_train_steps), 1)
                why = f"scaled with max_train_steps, which was {spec.max_train_steps:,}"
                new_spec = new_spec.with_parameter(name, parameter.model_copy(update={"value": scaled_length, "why": why}))
        return new_spec


class SetSchedule(FrozenModel):
    """Changes some settings of the learning-rate schedule."""

    kind: Literal["set-schedule"] = "set-schedule"
    schedule: dict[str, HyperparameterValue]
    why: str

    def apply(self, spec: StudySpec) -> StudySpec:
        """Return the spec with the new settings, also in fixed parameters that pass the schedule to the training script."""
        new_spec = spec.model_copy(update={"schedule": {**(spec.schedule or {}), **self.schedule}})
        for name, parameter in spec.parameters.items():
            value = self.schedule.get("kind" if is_transformers_schedule_name(name) else name)
            if value is not None and parameter.value is not None:
                new_spec = new_spec.with_parameter(name, parameter.model_copy(update={"value": value, "why": self.why}))
        return new_spec


class RepeatTrial(FrozenModel):
    """Repeats one or several settings with other seeds, to measure the variation between seeds or to compare the settings."""

    kind: Literal["repeat-trial"] = "repeat-trial"
    parameters: dict[str, HyperparameterValue]
    rivals: tuple[dict[str, HyperparameterValue], ...] = ()
    """Other settings to repeat with the same number of seeds, for a comparison with `parameters`."""
    seeds: Annotated[int, Field(ge=1)]
    why: str

    def apply(self, spec: StudySpec) -> StudySpec:
        """Return a spec whose trials repeat the settings; hyperparameters with equal values in all of them become fixed."""
        trials = (self.parameters, *self.rivals)
        names = dict.fromkeys(name for setting in trials for name in setting)
        varied = [n for n in names if len({setting_key({n: s[n]}) if n in s else None for s in trials}) > 1]
        parameters = {
            n: _scientific_parameter(spec.parameters.get(n), tuple(dict.fromkeys(s[n] for s in trials if n in s)), self.why)
            if n in varied
            else spec.fix_value(n, self.parameters[n], why="as in the best trial so far")
            for n in names
        }
        settings = tuple({n: s[n] for n in varied if n in s} for s in trials) if self.rivals else ()
        update = {"parameters": parameters, "forbidden": (), "settings": settings, "trials": len(trials), "seeds": self.seeds}
        return spec.model_copy(update={**update, "notes": ()})


def _scientific_parameter(old: Parameter | None, values: tuple[HyperparameterValue, ...], why: str) -> Parameter:
    kind = old.type if old is not None and old.type in ("float", "int") else None
    return Parameter(role="scientific", type=kind, choices=values, when=old.when if old is not None else None, why=why)


class Forbid(FrozenModel):
    """Excludes a region of the search space, because trials in it fail."""

    kind: Literal["forbid"] = "forbid"
    region: Region

    def apply(self, spec: StudySpec) -> StudySpec:
        return spec.model_copy(update={"forbidden": (*spec.forbidden, self.region)})


class Reparametrise(FrozenModel):
    """Searches a combination of hyperparameters instead of one of them, for example lr / (1 - momentum) instead of lr."""

    kind: Literal["reparametrise"] = "reparametrise"
    parameter: str
    """Hyperparameter that is computed instead of searched."""
    by: str
    """Combination of hyperparameters to search instead."""
    formula: str
    """Formula that computes the old hyperparameter from `by` and other hyperparameters."""
    equals: str
    """Formula that computes `by` from the hyperparameters of earlier trials."""
    low: float
    high: float
    scale: AxisScale
    why: str

    def apply(self, spec: StudySpec) -> StudySpec:
        """Return a spec that searches `by` and computes `parameter` from it. A spec without `parameter` stays unchanged."""
        old = spec.parameters.get(self.parameter)
        if old is None:
            return spec
        fields = self.model_dump(include={"low", "high", "scale", "equals", "why"})
        new = Parameter(role=old.role if old.searched else "nuisance", type="float", when=old.when, **fields)
        computed_parameter = Parameter(role="derived", formula=self.formula, when=old.when, why=f"computed from {self.by}")
        return spec.with_parameter(self.parameter, computed_parameter).with_parameter(self.by, new)


class Advise(FrozenModel):
    """Advice that does not change the search space, such as to keep checkpoints or to get more validation data."""

    kind: Literal["advise"] = "advise"
    text: str
    """One imperative sentence."""
    new_scores: bool = False
    """True if the advice changes the validation data, so that later scores cannot be compared with earlier scores."""

    def apply(self, spec: StudySpec) -> StudySpec:
        return spec if self.text in spec.notes else spec.model_copy(update={"notes": (*spec.notes, self.text)})


StudyDesignName = Literal["probe-early", "warmup", "clip", "steps-initial", "batch-sweep", "rounds", "exploit", "per-optimizer"]


class RunPlan(FrozenModel):
    """Requests one of the study designs of the Deep Learning Tuning Playbook, such as a batch size sweep.
    `advisor.planning.designs` creates the study from this request and the analysed study."""

    kind: Literal["plan"] = "plan"
    plan: StudyDesignName
    parameter: str | None = None
    """Hyperparameter that the study design concerns."""
    numbers: dict[str, float] = {}  # noqa: RUF012 - pydantic copies it
    """Measurements that a rule passes to the study design, by the names that the design's module lists."""
    why: str

    def apply(self, spec: StudySpec) -> StudySpec:
        """Return the spec with the reason as a note. `advisor.planning.designs` plans the study itself."""
        return Advise(text=f"{self.why}.").apply(spec)


def only_saves_trials(change: Change) -> bool:
    """Return True if the change only fixes an unimportant hyperparameter or drops inferior values."""
    return isinstance(change, DropValues) or (isinstance(change, FixParameter) and change.for_now)


Change = Annotated[
    SetRange
    | FixParameter
    | DropValues
    | AddParameter
    | SetField
    | SetSchedule
    | Forbid
    | Reparametrise
    | RepeatTrial
    | RunPlan
    | Advise,
    Field(discriminator="kind"),
]


def change_training_length(study: Study, steps: int, why: str) -> Change:
    """Return a change of `max_train_steps` to `steps`, or advice as text if the study counts time instead of steps."""
    if study.unit in ("second", "millisecond"):
        return Advise(text=f"Change the length of training to {study.length(steps)}. {why}")
    return SetField(field="max_train_steps", value=steps, why=why)
