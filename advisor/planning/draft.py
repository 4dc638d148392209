"""The study that changes are applied to. The first rule to set a part of it keeps that part; later rules cannot undo it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from pydantic import ValidationError

from advisor.model.change import (
    AddParameter,
    Change,
    FixParameter,
    Forbid,
    Reparametrise,
    RepeatTrial,
    SetField,
    SetRange,
)
from advisor.model.spec import StudySpec
from advisor.planning.base import validate

Part: TypeAlias = tuple[str, str]
"""A part of a spec that a change sets: (parameter or field, "low", "high" or "scale")."""


class Conflict(Exception):  # noqa: N818 - the caller reports it as a reason
    """Raised for a change that cannot be applied; its message is the reason."""


@dataclass
class Draft:
    """The next study while findings change it, one after the other."""

    start: StudySpec
    """The study before any change."""
    current: StudySpec
    owners: dict[Part, str] = field(default_factory=dict)
    """The rule that set each part."""

    def apply(self, rule: str, change: Change) -> bool:
        """Apply the change and return whether it altered the study. Raises Conflict."""
        if isinstance(change, RepeatTrial) and self.current != self.start:
            raise Conflict("the changed study may find a better trial; that one should be repeated")
        others = {self.owners[part] for part in _parts(change, self.current) if part in self.owners} - {rule}
        if isinstance(change, SetRange):
            change = self._without_parts_of_others(rule, change)
        if others and not (isinstance(change, SetRange) and _parts(change, self.current)):
            if self._agrees(change):
                return False
            raise Conflict(f"{' and '.join(sorted(others))} already set {target(change)}")
        after = self._changed(change)
        if after == self.current:
            return False
        for part in _parts(change, self.current):
            self.owners.setdefault(part, rule)
        self.current = after
        return True

    def _without_parts_of_others(self, rule: str, change: SetRange) -> SetRange:
        """The change with those ends and that scale of the range that other rules have set."""
        now = self.current.parameters.get(change.parameter)
        if now is None or not now.numeric:
            return change
        sides = ("low", "high", "scale")
        update = {s: getattr(now, s) for s in sides if self.owners.get((change.parameter, s), rule) != rule}
        if update and now.why and now.why != change.why:
            # Both rules made the range what it is.
            update["why"] = f"{now.why.rstrip('.')}. {change.why}"
        return change.model_copy(update=update)

    def _agrees(self, change: Change) -> bool:
        """Whether an earlier rule already added the same parameter or moved the same field in the same direction."""
        if isinstance(change, AddParameter):
            return change.name in self.current.searched
        if not isinstance(change, SetField):
            return False
        before, now = getattr(self.start, change.field), getattr(self.current, change.field)
        return before is not None and (now - before) * (change.value - before) > 0

    def _changed(self, change: Change) -> StudySpec:
        try:
            return validate(change.apply(self.current))
        except ValidationError:
            name = target(change)
            old = self.current.parameters.get(name)
            if old is not None and old.limits is not None:
                raise Conflict(f"its change of {name} exceeds the declared limits") from None
            raise Conflict(f"its change of {name} contradicts a change of higher priority") from None


def target(change: Change) -> str:
    """What a change is about: a parameter, a field or the schedule."""
    match change:
        case SetRange() | FixParameter() | Reparametrise():
            return change.parameter
        case AddParameter():
            return change.name
        case RepeatTrial():
            return "trial variance"
        case Forbid():
            return " × ".join(change.region.where)
        case SetField():
            return change.field
    return "schedule"


def _parts(change: Change, spec: StudySpec) -> list[Part]:
    """The parts that a change sets: single ends and the scale of a numeric range, anything else as a whole."""
    name = target(change)
    now = spec.parameters.get(name)
    if not isinstance(change, SetRange) or now is None or not now.numeric:
        return [(name, "low"), (name, "high")]
    return [(name, side) for side in ("low", "high", "scale") if getattr(change, side) != getattr(now, side)]
