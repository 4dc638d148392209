"""The draft of the next study, and the findings, which apply their changes to the draft or are deferred.

Once a rule has set a part of the draft, later rules cannot change this part. There is one exception: if several rules narrow
the same end of a range, the narrowest range applies."""

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
"""A part of a study file that a change sets: the name of a parameter or field, and "low", "high" or "scale"."""


class ChangeConflictError(Exception):
    """Raised if a change cannot be applied to the draft; the message is the reason."""


@dataclass
class StudyDraft:
    """The next study, to which the changes of findings are applied one after another."""

    start: StudySpec
    """The next study before any change."""
    current_spec: StudySpec
    rule_by_part: dict[SpecPart, str] = field(default_factory=dict)
    """For each part of the study that a rule has set, the id of this rule."""

    def apply(self, rule: str, change: Change) -> bool:
        """Apply the change, and return whether it altered the draft. Raises ChangeConflictError if the change cannot be applied."""
        if isinstance(change, RepeatTrial) and self.current_spec != self.start:
            raise ChangeConflictError("the changed study may find a better trial, which should be repeated instead")
        if isinstance(change, SetRange):
            change = self._with_unrounded_ends(change)
            conflict = roles.reason_against_change(change, self.start.parameters.get(change.parameter))
            if conflict is not None:
                raise ChangeConflictError(conflict)
        other_rules = {self.rule_by_part.get(part, rule) for part in _changed_parts(change, self.current_spec)} - {rule}
        if isinstance(change, SetRange):
            change = self._without_parts_of_others(rule, change)
        if other_rules and not (isinstance(change, SetRange) and _changed_parts(change, self.current_spec)):
            # The change is unnecessary if an earlier one added the same parameter, or moved the same field the same way.
            if isinstance(change, AddParameter) and change.name in self.current_spec.searched:
                return False
            if isinstance(change, SetField):
                start, current = getattr(self.start, change.field), getattr(self.current_spec, change.field)
                if start is not None and (current - start) * (change.value - start) > 0:
                    return False
            raise ChangeConflictError(f"{' and '.join(sorted(other_rules))} already set {changed_name(change)}")
        try:
            changed_spec = validate_spec(change.apply(self.current_spec))
        except ValidationError:
            old = self.current_spec.parameters.get(changed_name(change))
            has_limits = old is not None and old.limits is not None
            reason = "exceeds the declared limits" if has_limits else "contradicts a change with higher priority"
            raise ChangeConflictError(f"its change of {changed_name(change)} {reason}") from None
        if changed_spec == self.current_spec:
            return False
        for part in _changed_parts(change, self.current_spec):
            self.rule_by_part.setdefault(part, rule)
        self.current_spec = changed_spec
        return True

    def _with_unrounded_ends(self, change: SetRange) -> SetRange:
        """Return the change of a range. If a new end equals the study's end up to rounding, keep the study's end exactly,
        because ends that were inferred from trials are rounded."""
        start = self.start.parameters.get(change.parameter)
        if start is None or start.low is None or start.high is None:
            return change
        width = start.high - start.low
        kept_ends = {}
        if start.low <= change.low and round_outwards(change.low, "low", width) == start.low:
            kept_ends["low"] = start.low
        if change.high <= start.high and round_outwards(change.high, "high", width) == start.high:
            kept_ends["high"] = start.high
        return change.model_copy(update=kept_ends)

    def _without_parts_of_others(self, rule: str, change: SetRange) -> SetRange:
        """Return the change without ends or a scale that other rules have set, except an end that narrows the range further."""
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
            # Both rules determined the range, so keep the reasons of both.
            update["why"] = f"{now.why.rstrip('.')}. {change.why}"
        return change.model_copy(update=update)


def changed_name(change: Change) -> str:
    """Return the name of the parameter or study field that a change concerns, or "schedule"."""
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
    """Return the parts of the study file that a change sets. The ends and the scale of a numeric range are separate parts. Any
    other parameter or field is set as a whole."""
    name = changed_name(change)
    now = spec.parameters.get(name)
    if not isinstance(change, SetRange) or now is None or not now.numeric:
        return [(name, "low"), (name, "high")]
    return [(name, side) for side in ("low", "high", "scale") if getattr(change, side) != getattr(now, side)]


class Deferred(FrozenModel):
    """A finding that the first of the next studies does not follow, with the reason."""

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
    """Findings that the planned studies follow, and findings that wait until the problem of a followed finding is fixed."""

    def follow(self, finding: Finding, edits: StageEdits, savings: Sequence[StageEdits]) -> None:
        """Apply the finding's changes to the draft, or defer the finding.

        edits: the edits of the finding's stage, to which this method adds changes and notes. savings: edits of earlier stages
        that have no study."""
        if finding.confidence < MIN_CONFIDENCE:
            chance = f"{100 * finding.confidence:.0f} %"
            self.defer(finding, f"the finding is too uncertain: it is right with a probability of {chance}")
            return
        if finding.severity == "note" and finding.goal in REGULARISATION_STAGE and not recommends_only_advice(finding):
            self.defer(finding, "the problem does not make the best results worse")
            return
        if (waiting_cause := self._cause_to_fix_first(finding)) is not None:
            # Name only the hyperparameter, not the new range, because other findings may change the range further.
            changed_ranges = [c.parameter for c in waiting_cause.changes if isinstance(c, SetRange)]
            time_text = f"after this: {clean(first_sentence(waiting_cause.action)).rstrip('.')}"
            time_text = f"when the range of {clean(changed_ranges[0])} has changed" if changed_ranges else time_text
            self.defer(finding, f"the problem probably disappears {time_text}")
            self.settled.append(finding)
            return
        # Create all changes before the first is applied: study designs need the draft without this finding's changes.
        deferred_before = len(self.deferred)
        changes = [m for c in finding.changes for m in self._apply_design(finding, c, edits, savings)]
        applied_changes = []
        for change in changes:
            try:
                if not isinstance(change, Advise) and self.draft.apply(finding.rule, change):
                    applied_changes.append(change)
            except ChangeConflictError as conflict:
                self.defer(finding, str(conflict))
        edits.changes += applied_changes
        is_minor_effect = finding.severity == "note" and finding.explained_by is not None
        if applied_changes or (len(self.deferred) == deferred_before and not is_minor_effect):
            edits.notes += [c for c in changes if isinstance(c, Advise) and c not in edits.notes]
        if applied_changes or any(isinstance(c, Advise | RunPlan) for c in finding.changes):
            self.settled.append(finding)

    def _apply_design(
        self, finding: Finding, change: Change, edits: StageEdits, savings: Sequence[StageEdits]
    ) -> tuple[Change, ...]:
        """Return the change itself or, if it requests a study design, the changes that the design makes. A design that makes
        a separate study changes nothing here."""
        if not isinstance(change, RunPlan):
            return (self._lengthen_draft(finding, change),)
        try:
            study_or_changes = STUDY_DESIGNS[change.plan](change, self.study, self.draft.current_spec)
            if not isinstance(study_or_changes, StudySpec):
                return study_or_changes
            validate_spec(study_or_changes)
            followed = {f.rule for e in savings for f in e.changing_findings}
            if change.plan == "exploit" and assess_evidence(self.study, self.verdicts, self.rules, followed).state != "fine":
                needs = "a known effect, a known variation between seeds and a settled search space"
                self.defer(finding, f"an adaptive search needs {needs}")
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
        """If the change lengthens trials shorter than the draft's training, apply the same factor to the draft's length."""
        draft_steps = self.draft.current_spec.max_train_steps
        if finding.goal != "steps" or not isinstance(change, SetField) or change.field != "max_train_steps":
            return change
        if not draft_steps or change.value > draft_steps:
            return change
        lengths = [s for t in self.study.trials if t.id in finding.trials and (s := self.study.planned_steps(t)) > 0]
        usual_steps = float(np.median(lengths)) if lengths else math.inf
        if not usual_steps < min(change.value, draft_steps):
            return change
        return change.model_copy(update={"value": round_up_steps(draft_steps * change.value / usual_steps)})

    def defer(self, finding: Finding, reason: str) -> None:
        """Record that the first of the next studies does not follow the finding, with the first reason for that."""
        if not any((d.rule, d.message) == (finding.rule, finding.message) for d in self.deferred):
            self.deferred.append(Deferred(rule=finding.rule, message=finding.message, reason=reason))

    def _cause_to_fix_first(self, finding: Finding) -> Finding | None:
        cause = find_cause(finding, self.findings)
        waits_for_cause = finding.explained_by is not None and finding.explained_by.waits
        return cause if waits_for_cause and cause in self.settled else None

    def cause_count(self, finding: Finding) -> int:
        """Return the number of findings that are direct or indirect causes of this finding."""
        cause = find_cause(finding, self.findings)
        return 0 if cause is None else 1 + self.cause_count(cause)

    def needs_manual_fix(self, finding: Finding) -> bool:
        """Return whether the user must fix something by hand before the next study. If so, the finding's stage gets a separate
        study, before all studies with less important goals."""
        if self._cause_to_fix_first(finding) is not None or not any(isinstance(c, Advise) for c in finding.changes):
            return False
        is_cause_of_others = finding.goal == "pipeline" and any(self._cause_to_fix_first(f) == finding for f in self.findings)
        return finding.severity == "critical" or (finding.severity == "warning" and is_cause_of_others)
