"""The draft of the next study, to which findings apply their changes, and the findings that it follows or defers.

Once a rule has set a part of the draft, later rules cannot change this part. If several rules cut the same end of a range,
however, the tighter cut applies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from pydantic import ValidationError

from advisor.engine.explain import find_cause
from advisor.engine.rule import Rule
from advisor.model.change import (
    AddParameter,
    Advise,
    Change,
    DropValues,
    FixParameter,
    Forbid,
    Reparametrise,
    RepeatTrial,
    RunPlan,
    SetField,
    SetRange,
)
from advisor.model.finding import Finding, Verdict
from advisor.model.frozen import FrozenModel
from advisor.model.message import MessageField, first_sentence
from advisor.model.space import round_outwards, round_up_steps
from advisor.model.spec import StudySpec
from advisor.model.study import Study
from advisor.model.words import clean
from advisor.planning import roles
from advisor.planning.base import validate_spec
from advisor.planning.designs.catalogue import STUDY_DESIGNS
from advisor.planning.stages import MIN_CONFIDENCE, REGULARISATION_STAGE, StageEdits, recommends_only_advice
from advisor.planning.states import assess_evidence

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


class Deferred(FrozenModel):
    """A finding whose changes the first of the next studies does not contain, with the reason."""

    rule: str
    message: MessageField
    reason: str


@dataclass
class FindingFollower:
    """Applies the changes of findings to the draft one after another."""

    study: Study
    """The analysed study."""
    findings: Sequence[Finding]
    """All findings on the analysed study, most important first."""
    verdicts: Sequence[Verdict]
    rules: Sequence[Rule]
    draft: StudyDraft
    deferred: list[Deferred] = field(default_factory=list)
    settled: list[Finding] = field(default_factory=list)
    """Findings that the planned studies follow, and findings that wait for a followed finding."""

    def follow(self, finding: Finding, edits: StageEdits, savings: Sequence[StageEdits]) -> None:
        """Apply the finding's changes to the draft, or defer the finding.

        edits: collects the changes and notes of the finding's stage. savings: edits of earlier stages that have no study."""
        if finding.confidence < MIN_CONFIDENCE:
            chance = f"{100 * finding.confidence:.0f} %"
            self.defer(finding, f"the finding is too uncertain: it is right with a probability of {chance}")
            return
        if finding.severity == "note" and finding.goal in REGULARISATION_STAGE and not recommends_only_advice(finding):
            self.defer(finding, "the problem does not make the best results worse")
            return
        if (cause := self._cause_to_fix_first(finding)) is not None:
            # A range is named without its end values, because other findings may set different values.
            ranges = [c.parameter for c in cause.changes if isinstance(c, SetRange)]
            when = f"after this: {clean(first_sentence(cause.action)).rstrip('.')}"
            when = f"when the range of {clean(ranges[0])} has changed" if ranges else when
            self.defer(finding, f"the problem probably disappears {when}")
            self.settled.append(finding)
            return
        # Create all changes before applying the first one, because study designs need the draft without this finding's changes.
        before = len(self.deferred)
        changes = [m for c in finding.changes for m in self._apply_design(finding, c, edits, savings)]
        changed = []
        for change in changes:
            try:
                if not isinstance(change, Advise) and self.draft.apply(finding.rule, change):
                    changed.append(change)
            except ChangeConflictError as conflict:
                self.defer(finding, str(conflict))
        edits.changes += changed
        minor = finding.severity == "note" and finding.explained_by is not None
        if changed or (len(self.deferred) == before and not minor):
            edits.notes += [c for c in changes if isinstance(c, Advise) and c not in edits.notes]
        if changed or any(isinstance(c, Advise | RunPlan) for c in finding.changes):
            self.settled.append(finding)

    def _apply_design(
        self, finding: Finding, change: Change, edits: StageEdits, savings: Sequence[StageEdits]
    ) -> tuple[Change, ...]:
        """Return the changes of the study design that the change requests, or the change itself; none for a design's own study."""
        if not isinstance(change, RunPlan):
            return (self._lengthen_draft(finding, change),)
        try:
            made = STUDY_DESIGNS[change.plan](change, self.study, self.draft.current_spec)
            if not isinstance(made, StudySpec):
                return made
            validate_spec(made)
            follows = {f.rule for e in savings for f in e.changing_findings}
            if change.plan == "exploit" and assess_evidence(self.study, self.verdicts, self.rules, follows).state != "fine":
                self.defer(finding, "an adaptive search needs a known effect, a known variation and a settled space")
                return ()
        except ValidationError:
            self.defer(finding, f"the design {change.plan!r} would make a study that contradicts itself")
            return ()
        if edits.request is None:
            edits.request = change
        elif change.plan != edits.request.plan:
            self.defer(finding, f"one study at a time: the design {edits.request.plan!r} comes first")
        return ()

    def _lengthen_draft(self, finding: Finding, change: Change) -> Change:
        """If the change lengthens trials that are shorter than the draft's training, return it with the draft's length, times the
        same factor."""
        fixed = self.draft.current_spec.max_train_steps
        if finding.goal != "steps" or not isinstance(change, SetField) or change.field != "max_train_steps":
            return change
        if not fixed or change.value > fixed:
            return change
        lengths = [s for t in self.study.trials if t.id in finding.trials and (s := self.study.planned_steps(t)) > 0]
        usual = float(np.median(lengths)) if lengths else math.inf
        if not usual < min(change.value, fixed):
            return change
        return change.model_copy(update={"value": round_up_steps(fixed * change.value / usual)})

    def defer(self, finding: Finding, reason: str) -> None:
        """Record that the first of the next studies does not follow the finding. Only the first reason given for a finding is
        recorded."""
        if not any((d.rule, d.message) == (finding.rule, finding.message) for d in self.deferred):
            self.deferred.append(Deferred(rule=finding.rule, message=finding.message, reason=reason))

    def _cause_to_fix_first(self, finding: Finding) -> Finding | None:
        cause = find_cause(finding, self.findings)
        waits = finding.explained_by is not None and finding.explained_by.waits
        return cause if waits and cause in self.settled else None

    def cause_count(self, finding: Finding) -> int:
        """Return the number of causes before this finding in its causal chain."""
        cause = find_cause(finding, self.findings)
        return 0 if cause is None else 1 + self.cause_count(cause)

    def needs_manual_fix(self, finding: Finding) -> bool:
        """Return whether the user must fix something by hand before the next study. A fix by hand needs a separate study, which
        must precede all studies with less important goals."""
        if self._cause_to_fix_first(finding) is not None or not any(isinstance(c, Advise) for c in finding.changes):
            return False
        blocks = finding.goal == "pipeline" and any(self._cause_to_fix_first(f) == finding for f in self.findings)
        return finding.severity == "critical" or (finding.severity == "warning" and blocks)
