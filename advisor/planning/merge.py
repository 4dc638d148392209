"""Combines the changes of all findings into the next studies. Only this module resolves conflicts between findings.

Playbook: "Choosing the goal for the next round of experiments". `stages.in_order` assigns the findings to stages by priority. Each
stage with changes becomes one study with one goal, based on the study of the stages before it:

- If two changes contradict each other, the one with higher priority is applied; the other is deferred with the reason (`draft`).
- If another finding explains a finding, the effect waits until its cause is fixed (`advisor.engine.explain`).
- A finding may request a design of the playbook, such as a search for a warmup (`designs`). That design becomes the stage's study,
  and the stage's other changes go into its `baseline`, which is the study after it.
- A stage that only fixes hyperparameters of little effect saves trials but yields no gain, so the next study includes its changes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from pydantic import ValidationError

from advisor.computed.curves.curve_tails import round_up
from advisor.engine.explain import cause_of
from advisor.engine.rule import Rule
from advisor.model.change import Advise, Change, FixParameter, RepeatTrial, RunPlan, SetField
from advisor.model.finding import Finding, Verdict, by_priority
from advisor.model.frozen import FrozenModel
from advisor.model.message import MessageField
from advisor.model.spec import Sampler, StudySpec
from advisor.model.study import Study
from advisor.planning.base import base, name_of_round, validate
from advisor.planning.closing import closing_study
from advisor.planning.designs import per_optimizer
from advisor.planning.designs.catalogue import DESIGNS
from advisor.planning.designs.reseed import REPEAT_GOAL
from advisor.planning.draft import Conflict, Draft, target
from advisor.planning.stages import Stage, in_order

MIN_CONFIDENCE = 0.5
"""Minimum confidence of a finding whose changes are applied; below this, the finding is more likely wrong than right."""


class Deferred(FrozenModel):
    """A finding whose changes are not in the first study, with the reason."""

    rule: str
    message: MessageField
    reason: str


class Plan(FrozenModel):
    """The next studies in the order in which to run them, and the deferred findings."""

    specs: tuple[StudySpec, ...]
    deferred: tuple[Deferred, ...]


def file_names(specs: Sequence[StudySpec]) -> list[str]:
    """Return a file name for each spec, in order, such as `1-search-the-right-space.yaml`."""
    return [f"{i}-{slug(spec.goal.partition(':')[0])}.yaml" for i, spec in enumerate(specs, 1)]


def slug(text: str) -> str:
    """Return `text` in a form for file names: at most 40 lower-case letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40] or "study"


def plan(study: Study, verdicts: Iterable[Verdict], rules: Sequence[Rule] = ()) -> Plan:
    """Return the next studies, based on the findings on this one.

    rules: the rules that produced the verdicts; they declare what must be settled before the design `exploit`.
    """
    verdicts = tuple(verdicts)
    findings = by_priority(f for v in verdicts for f in v.findings)
    start = base(study)
    merger = _Merger(study, findings, Draft(start, start))
    for stage in in_order(study, findings):
        merger.add_stage(stage)
    merger.add_savings()
    specs = merger.specs
    if not specs and (last := closing_study(study, verdicts, rules, merger.draft.current)) is not None:
        specs = [last]
    specs = per_optimizer.divided(_with_notes(specs, merger.notes))
    return Plan(specs=tuple(specs), deferred=tuple(merger.deferred))


def _with_notes(specs: Sequence[StudySpec], notes: Sequence[Advise]) -> list[StudySpec]:
    """Return the specs, with the advice that search spaces cannot express added to the notes of the first one."""
    if not specs:
        return []
    first = specs[0]
    for note in notes:
        first = note.apply(first)
    return [first, *specs[1:]]


@dataclass
class _StageEdits:
    """Changes that the findings of one stage made."""

    goal: str
    findings: Sequence[Finding]
    changes: list[Change] = field(default_factory=list)
    """Changes that altered the draft."""
    request: RunPlan | None = None
    """The requested design that creates the stage's study."""

    @property
    def subjects(self) -> list[str]:
        return list(dict.fromkeys(map(target, self.changes)))

    @property
    def only_saves(self) -> bool:
        """Whether the stage only fixed hyperparameters of little effect, which saves trials but yields no gain."""
        return all(isinstance(change, FixParameter) and change.for_now for change in self.changes)


@dataclass
class _Merger:
    """Applies the findings stage by stage and collects the next studies."""

    study: Study
    """The analysed study."""
    findings: Sequence[Finding]
    """All findings on the study, the most important first."""
    draft: Draft
    specs: list[StudySpec] = field(default_factory=list)
    deferred: list[Deferred] = field(default_factory=list)
    notes: list[Advise] = field(default_factory=list)
    settled: list[Finding] = field(default_factory=list)
    """Findings whose changes or advice are in the studies so far, and findings that wait for one of them."""
    savings: list[_StageEdits] = field(default_factory=list)
    """Stages that only save trials and are not part of a study yet."""

    # --- stages -----------------------------------------------------------------------------------------------------------------

    def add_stage(self, stage: Stage) -> None:
        """Apply the changes of the stage's findings; add a study if there are enough changes for one."""
        before = self.draft.current
        edits = _StageEdits(stage.title, [f for f in self.findings if f.goal in stage.goals])
        for finding in sorted(edits.findings, key=lambda f: (_repeats_trial(f), self._depth(f))):
            self._add_finding(finding, edits)
        by_hand = any(self._needs_manual_fix(f) for f in edits.findings)
        if not (edits.request or by_hand or self.draft.current != before):
            return
        edits.goal += f": {', '.join(edits.subjects) or 'follow the notes, then repeat the study'}"
        if "trial variance" in edits.subjects:
            edits.goal = REPEAT_GOAL
        if edits.request or by_hand or not edits.only_saves:
            self._add_study(edits)
        else:
            self.savings.append(edits)

    def add_savings(self) -> None:
        """Add a study for the stages that only save trials, unless a later study already includes their changes."""
        if self.savings:
            self._add_study(_StageEdits(self.savings[-1].goal, ()))

    def _add_study(self, edits: _StageEdits) -> None:
        """Add the stage's study: the requested design, or else the draft."""
        request, current = edits.request, self.draft.current
        designed = DESIGNS[request.plan](request, self.study, current) if request is not None else ()
        spec = designed if isinstance(designed, StudySpec) else current.model_copy(update={"goal": edits.goal})
        if self.specs:
            for finding in (f for stage in (*self.savings, edits) for f in stage.findings):
                self._defer(finding, _reason_to_wait(self.specs[0]))
        self.savings = []
        self.specs.append(self._in_its_round(spec))
        if request is None:
            self.draft.current = self.specs[-1]

    def _in_its_round(self, spec: StudySpec) -> StudySpec:
        """Return the study with its name, parent, round number and seed."""
        start, last = self.draft.start, self.specs[-1] if self.specs else None
        number = start.round if last is None else last.round + 1
        update = {
            "study": name_of_round(self.draft.current, number),
            "parent": start.parent if last is None else last.study,
            "round": number,
            # A probe trains each of its choices once; random and adaptive samplers cannot guarantee that.
            "sampler": Sampler(kind="halton" if spec.probe else spec.sampler.kind, seed=number),
            "baseline": self.draft.current if spec.probe else None,
        }
        return validate(spec.model_copy(update=update))

    # --- findings ---------------------------------------------------------------------------------------------------------------

    def _add_finding(self, finding: Finding, edits: _StageEdits) -> None:
        """Apply the finding's changes to the draft, or defer the finding."""
        if finding.confidence < MIN_CONFIDENCE:
            self._defer(finding, f"its confidence of {finding.confidence:.0%} is too low to change a study")
            return
        if (cause := self._waits_for(finding)) is not None:
            self._defer(finding, f"it follows from the finding of {cause.rule}; fix that first, this may then be gone")
            self.settled.append(finding)
            return
        # Designs need the draft without this finding's changes, so create all changes before applying the first.
        changes = [made for change in finding.changes for made in self._designed(finding, change, edits)]
        changed = [change for change in changes if self._apply(finding, change)]
        edits.changes += changed
        if changed or any(isinstance(c, Advise | RunPlan) for c in finding.changes):
            self.settled.append(finding)

    def _designed(self, finding: Finding, change: Change, edits: _StageEdits) -> tuple[Change, ...]:
        """Return the change, or the changes of the design that it requests; empty if the design creates a study of its own."""
        if not isinstance(change, RunPlan):
            return (self._lengthened(finding, change),)
        try:
            made = DESIGNS[change.plan](change, self.study, self.draft.current)
            if not isinstance(made, StudySpec):
                return made
            validate(made)
        except ValidationError:
            self._defer(finding, f"the design {change.plan!r} would make a study that contradicts itself")
            return ()
        if edits.request is None:
            edits.request = change
        elif change.plan != edits.request.plan:
            self._defer(finding, f"one study at a time: the design {edits.request.plan!r} comes first")
        return ()

    def _lengthened(self, finding: Finding, change: Change) -> Change:
        """Return the change; a lengthening of shorter trials is scaled to the length that the study has already."""
        fixed = self.draft.current.max_train_steps
        if finding.goal != "steps" or not isinstance(change, SetField) or change.field != "max_train_steps":
            return change
        if not fixed or change.value > fixed:
            return change
        lengths = [s for t in self.study.trials if t.id in finding.trials and (s := self.study.planned_steps(t)) > 0]
        usual = float(np.median(lengths)) if lengths else math.inf
        if not usual < min(change.value, fixed):
            return change
        return change.model_copy(update={"value": round_up(fixed * change.value / usual)})

    def _apply(self, finding: Finding, change: Change) -> bool:
        """Apply one change; return whether it altered the draft."""
        if isinstance(change, Advise):
            if change not in self.notes:
                self.notes.append(change)
            return False
        try:
            return self.draft.apply(finding.rule, change)
        except Conflict as conflict:
            self._defer(finding, str(conflict))
            return False

    def _defer(self, finding: Finding, reason: str) -> None:
        if not any((d.rule, d.message) == (finding.rule, finding.message) for d in self.deferred):
            self.deferred.append(Deferred(rule=finding.rule, message=finding.message, reason=reason))

    # --- causes -----------------------------------------------------------------------------------------------------------------

    def _waits_for(self, finding: Finding) -> Finding | None:
        """Return the cause that must be fixed before this finding's changes are applied; None if there is none."""
        cause = cause_of(finding, self.findings)
        waits = finding.explained_by is not None and finding.explained_by.waits
        return cause if waits and cause in self.settled else None

    def _depth(self, finding: Finding) -> int:
        """Return the number of findings before this one in its causal chain."""
        cause = cause_of(finding, self.findings)
        return 0 if cause is None else 1 + self._depth(cause)

    def _needs_manual_fix(self, finding: Finding) -> bool:
        """Return whether the advice of the finding needs a separate study, so that no study with a lesser goal precedes it."""
        if self._waits_for(finding) is not None or not any(isinstance(c, Advise) for c in finding.changes):
            return False
        blocks = finding.goal == "pipeline" and any(self._waits_for(f) == finding for f in self.findings)
        return finding.severity == "critical" or (finding.severity == "warning" and blocks)


def _repeats_trial(finding: Finding) -> bool:
    """Return whether the finding asks to repeat a trial. Repeats come last and only if there are no changes."""
    return any(isinstance(c, RepeatTrial) for c in finding.changes)


def _reason_to_wait(spec: StudySpec) -> str:
    """Return the reason why a finding waits until the first study has been run."""
    goal = spec.goal.partition(":")[0]
    if goal == "Search the right space":
        return "change the range first, so the effect of each change stays visible"
    return f"“{goal}” comes first, so the effect of each change stays visible"
