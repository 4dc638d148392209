"""The draft of the next study, to which findings apply their changes.

Once a rule has set a part of the draft, later rules cannot change this part. If several rules cut the same end of a range,
however, the tighter cut applies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from pydantic import ValidationError

from advisor.model.change import (
    AddParameter,
    Change,
    DropValues,
    FixParameter,
    Forbid,
    Reparametrise,
    RepeatTrial,
    SetField,
    SetRange,
)
from advisor.model.space import round_outwards
from advisor.model.spec import StudySpec
from advisor.planning import roles
from advisor.planning.base import validate_spec

SpecPart: TypeAlias = tuple[str, str]
"""A part of a spec that a change sets, as the name of a parameter or field, and "low", "high" or "scale"."""


class ChangeConflictError(Exception):
    """Raised if a change cannot be applied; the message is the reason."""


@dataclass
class StudyDraft:
    """The next study, to which the changes of findings are applied one after another."""

    start: StudySpec
    """The next study before any change."""
    current_spec: StudySpec
    rule_by_part: dict[SpecPart, str] = field(default_factory=dict)
    """Maps each part of the study that a rule has set to this rule."""

    def apply(self, rule: str, change: Change) -> bool:
        """Apply the change, and return whether it altered the draft. Raises ChangeConflictError if the change cannot be applied."""
        if isinstance(change, RepeatTrial) and self.current_spec != self.start:
            raise ChangeConflictError("the changed study may find a better trial, which should be repeated instead")
        if isinstance(change, SetRange):
            change = self._with_unrounded_ends(change)
            keep = roles.reason_against_change(change, self.start.parameters.get(change.parameter))
            if keep is not None:
                raise ChangeConflictError(keep)
        others = {self.rule_by_part.get(part, rule) for part in _changed_parts(change, self.current_spec)} - {rule}
        if isinstance(change, SetRange):
            change = self._without_parts_of_others(rule, change)
        if others and not (isinstance(change, SetRange) and _changed_parts(change, self.current_spec)):
            # An earlier change may have added the same parameter, or moved the same field in the same direction.
            if isinstance(change, AddParameter) and change.name in self.current_spec.searched:
                return False
            if isinstance(change, SetField):
                before, now = getattr(self.start, change.field), getattr(self.current_spec, change.field)
                if before is not None and (now - before) * (change.value - before) > 0:
                    return False
            raise ChangeConflictError(f"{' and '.join(sorted(others))} already set {target(change)}")
        try:
            after = validate_spec(change.apply(self.current_spec))
        except ValidationError:
            old = self.current_spec.parameters.get(target(change))
            limited = old is not None and old.limits is not None
            reason = "exceeds the declared limits" if limited else "contradicts a change with higher priority"
            raise ChangeConflictError(f"its change of {target(change)} {reason}") from None
        if after == self.current_spec:
            return False
        for part in _changed_parts(change, self.current_spec):
            self.rule_by_part.setdefault(part, rule)
        self.current_spec = after
        return True

    def _with_unrounded_ends(self, change: SetRange) -> SetRange:
        """Return the change with the study's own ends if its ends equal these up to rounding, because ends inferred from trials
        are rounded."""
        start = self.start.parameters.get(change.parameter)
        if start is None or start.low is None or start.high is None:
            return change
        width = start.high - start.low
        kept = {"low": start.low} if start.low <= change.low and round_outwards(change.low, "low", width) == start.low else {}
        if change.high <= start.high and round_outwards(change.high, "high", width) == start.high:
            kept["high"] = start.high
        return change.model_copy(update=kept)

    def _without_parts_of_others(self, rule: str, change: SetRange) -> SetRange:
        """Return the change without range ends or a scale that other rules have already set; keep a range end that cuts more
        than the earlier cut."""
        now, start = (spec.parameters.get(change.parameter) for spec in (self.current_spec, self.start))
        if now is None or not now.numeric:
            return change
        sides = ("low", "high", "scale")
        update = {s: getattr(now, s) for s in sides if self.rule_by_part.get((change.parameter, s), rule) != rule}
        if start is not None and start.low is not None and now.low is not None and start.low < now.low < change.low:
            update.pop("low", None)
        if start is not None and start.high is not None and now.high is not None and change.high < now.high < start.high:
            update.pop("high", None)
        if update and now.why and now.why != change.why:
            # Two rules determined the range, so keep both reasons.
            update["why"] = f"{now.why.rstrip('.')}. {change.why}"
        return change.model_copy(update=update)


def target(change: Change) -> str:
    """Return the name of the parameter or field that a change concerns, or "schedule"."""
    match change:
        case SetRange() | FixParameter() | DropValues() | Reparametrise():
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


def _changed_parts(change: Change, spec: StudySpec) -> list[SpecPart]:
    """Return the parts of the spec that a change sets. The ends and the scale of a numeric range are separate parts; any other
    parameter or field is set as a whole."""
    name = target(change)
    now = spec.parameters.get(name)
    if not isinstance(change, SetRange) or now is None or not now.numeric:
        return [(name, "low"), (name, "high")]
    return [(name, side) for side in ("low", "high", "scale") if getattr(change, side) != getattr(now, side)]
