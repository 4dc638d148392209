"""Folds what the rules found into the next studies: one goal each, by the playbook's priorities, conflicts settled here.

Playbook: "Choosing the goal for the next round of experiments". Findings are taken in the order of `stages.STAGES`; each stage
with something to change becomes one study, on top of the stages before it. Of two changes that contradict each other the one of
higher priority is made and the other is put off, with the reason. What a finding that another one explains asks for waits until
the cause is settled (`advisor.engine.explain`), where the cause comes first. A plan of the playbook that wants a study of its own,
such as a search for a warmup, is the stage's study; what else the stage changes is in the study that follows it, its `baseline`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

from pydantic import BaseModel, ConfigDict, ValidationError

from advisor.engine.explain import cause_of
from advisor.engine.rule import Rule
from advisor.model.change import (
    AddParameter,
    Advise,
    Change,
    FixParameter,
    Forbid,
    PlanName,
    Reparametrise,
    RepeatTrial,
    RunPlan,
    SetField,
    SetRange,
)
from advisor.model.finding import Finding, Verdict, by_priority
from advisor.model.message import MessageField
from advisor.model.spec import Sampler, StudySpec
from advisor.model.study import Study
from advisor.planning.base import base, checked, name_of_round
from advisor.planning.designs import catalogue, exploit
from advisor.planning.designs.explore import explore
from advisor.planning.designs.reseed import REPEAT_GOAL, reseed
from advisor.planning.stages import Stage, in_order

LEAST_CONFIDENCE = 0.5
"""A finding less sure than this is shown but changes no study: it is as likely wrong as right."""


class Deferred(BaseModel):
    """A finding that the first study leaves alone, and why."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rule: str
    message: MessageField
    reason: str


class Plan(BaseModel):
    """The next studies, the one to run first at the head, and what was put off."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    specs: tuple[StudySpec, ...]
    deferred: tuple[Deferred, ...]


def file_names(specs: Sequence[StudySpec]) -> list[str]:
    """A file name for each spec, in order: `1-search-the-right-space.yaml`."""
    return [f"{i}-{slug(spec.goal.partition(':')[0])}.yaml" for i, spec in enumerate(specs, 1)]


def slug(text: str) -> str:
    """`text` as part of a file name: small letters, digits and hyphens, at most 40."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40] or "study"


def plan(study: Study, verdicts: Iterable[Verdict], rules: Sequence[Rule] = ()) -> Plan:
    """The next studies for what was found in this one; with nothing to change, the best trial is repeated with other seeds.

    rules: those that gave the verdicts; they say which of them must be settled before the study is exploited.
    """
    said = tuple(verdicts)
    findings = by_priority(f for v in said for f in v.findings)
    start = base(study)
    draft = _Draft(study, start, start, findings)
    for stage in in_order(study, findings):
        draft.add_stage(stage, [f for f in findings if f.goal in stage.goals])
    draft.add_saved()
    specs = draft.specs or _nothing_to_change(study, said, rules, draft.current)
    return Plan(specs=tuple(_with_notes(specs, draft.notes)), deferred=tuple(draft.deferred))


def _nothing_to_change(
    study: Study, said: Sequence[Verdict], rules: Sequence[Rule], base: StudySpec
) -> list[StudySpec]:
    """What comes next where no rule asks for a change: what was put off, a last search, long runs, or the best trial again."""
    name = name_of_round(base, base.round)
    if study.spec.baseline is not None:
        return [base.model_copy(update={"study": name, "goal": f"Take up again what {study.name} prepared"})]
    if study.probe is not None:
        return []
    wanted: list[PlanName] = ["exploit"] if exploit.ready(study, said, rules) else []
    wanted += ["rounds"] if base.final_train_steps else []
    asked = [RunPlan(plan=plan_name, why="nothing is left to change") for plan_name in wanted]
    plans = (catalogue.PLANS[ask.plan](ask, study, base) for ask in asked)
    for made in chain((explore(study, said, rules, base),), plans):
        if isinstance(made, StudySpec):
            sampler = Sampler(kind=made.sampler.kind, seed=base.round)
            return [checked(made.model_copy(update={"study": name, "sampler": sampler}))]
    again = reseed(study, base)
    return [] if again is None else [checked(again)]


# --- folding --------------------------------------------------------------------------------------------------------------------


@dataclass
class _Draft:
    """The studies so far, and who changed what in them."""

    study: Study
    """The study that was analysed."""
    start: StudySpec
    """The study to follow, before any change."""
    current: StudySpec
    findings: Sequence[Finding]
    """All of the study."""
    specs: list[StudySpec] = field(default_factory=list)
    deferred: list[Deferred] = field(default_factory=list)
    notes: list[Advise] = field(default_factory=list)
    owners: dict[tuple[str, str], str] = field(default_factory=dict)
    """{(what, side): rule that set it}: what a later finding may not undo."""
    settled: list[Finding] = field(default_factory=list)
    """Findings whose changes or advice are in the studies so far, or wait for such a finding."""
    asked: list[RunPlan] = field(default_factory=list)
    """The plan that the stage's study is made by, as each finding asks for it."""
    saved: tuple[str, Sequence[Finding]] | None = None
    """The goal and the findings of a stage that only fixed what hardly matters."""

    def add_stage(self, stage: Stage, findings: Sequence[Finding]) -> None:
        """Apply the findings' changes; if any took effect, they are a study of their own."""
        before = self.current
        subjects: list[str] = []
        gains = False
        self.asked = []
        for finding in sorted(findings, key=lambda f: (_repeats(f), self._depth(f))):
            if finding.confidence < LEAST_CONFIDENCE:
                self._defer(finding, f"it is {finding.confidence:.0%} sure, too little to change a study")
                continue
            if (cause := self._waits_for(finding)) is not None:
                self._defer(finding, f"it follows from what {cause.rule} found and may be gone once that is settled")
                self.settled.append(finding)
                continue
            changes = [c for asked in finding.changes for c in self._planned(finding, asked)]
            changed = [c for c in changes if self._apply(finding, c)]
            subjects = list(dict.fromkeys([*subjects, *map(_target, changed)]))
            gains |= any(not (isinstance(c, FixParameter) and c.for_now) for c in changed)
            if changed or any(isinstance(c, Advise | RunPlan) for c in finding.changes):
                self.settled.append(finding)
        mended = any(self._must_be_mended(f) for f in findings)
        if not (self.asked or self.current != before or mended):
            return
        goal = f"{stage.title}: {', '.join(subjects) or 'see the notes, then repeat the study'}"
        if gains or self.asked or mended:
            self._add_study(REPEAT_GOAL if "trial variance" in subjects else goal, findings)
        else:
            self.saved = goal, [*self._saved_findings(), *findings]

    def _saved_findings(self) -> Sequence[Finding]:
        return self.saved[1] if self.saved else ()

    def add_saved(self) -> None:
        """Searching less saves trials and gains nothing: it is a study of its own only where none comes after it."""
        if self.saved is not None:
            self._add_study(self.saved[0], ())

    def _planned(self, finding: Finding, change: Change) -> tuple[Change, ...]:
        """The change, or what the plan that it asks for makes of it; one with a study of its own waits for the stage's end."""
        if not isinstance(change, RunPlan):
            return (change,)
        try:
            made = catalogue.PLANS[change.plan](change, self.study, self.current)
            if not isinstance(made, StudySpec):
                return made
            checked(made)
        except ValidationError:
            self._defer(finding, f"the study that the plan {change.plan!r} makes of it contradicts itself")
            return ()
        if all(change.plan == other.plan for other in self.asked):
            self.asked.append(change)
        else:
            self._defer(finding, f"one study at a time: the plan {self.asked[0].plan!r} comes first")
        return ()

    def _add_study(self, goal: str, findings: Sequence[Finding]) -> None:
        """The stage's study: the one that a plan designs, with the changes for the study after it, or the changes themselves."""
        made = catalogue.PLANS[self.asked[0].plan](self.asked[0], self.study, self.current) if self.asked else ()
        spec = made if isinstance(made, StudySpec) else self.current.model_copy(update={"goal": goal})
        findings, self.saved = [*self._saved_findings(), *findings], None
        if self.specs:
            for finding in findings:
                self._defer(finding, f"it comes after the goal “{self.specs[0].goal}”, which it would blur")
        self.specs.append(self._placed(spec))
        if not self.asked:
            self.current = self.specs[-1]

    def _placed(self, spec: StudySpec) -> StudySpec:
        """The study in its round."""
        number = self.start.round if not self.specs else self.specs[-1].round + 1
        update = {
            "study": name_of_round(self.current, number),
            "parent": self.start.parent if not self.specs else self.specs[-1].study,
            "round": number,
            # A probe trains each of its choices once: no sampler draws them by chance or by results.
            "sampler": Sampler(kind="halton" if spec.probe else spec.sampler.kind, seed=number),
            "baseline": self.current if spec.probe else None,
        }
        return checked(spec.model_copy(update=update))

    def _waits_for(self, finding: Finding) -> Finding | None:
        """The cause that comes first and is to be settled before what this finding asks for; None where there is none."""
        cause = cause_of(finding, self.findings)
        waits = finding.explained_by is not None and finding.explained_by.waits
        return cause if waits and cause in self.settled else None

    def _depth(self, finding: Finding) -> int:
        """How many causes there are before the finding."""
        cause = cause_of(finding, self.findings)
        return 0 if cause is None else 1 + self._depth(cause)

    def _must_be_mended(self, finding: Finding) -> bool:
        """Whether it takes what no space can say: a study of its own all the same, lest a lesser goal, or none, goes first."""
        if self._waits_for(finding) is not None or not any(isinstance(c, Advise) for c in finding.changes):
            return False
        holds = finding.goal == "pipeline" and any(self._waits_for(f) == finding for f in self.findings)
        return finding.severity == "critical" or (finding.severity == "warning" and holds)

    def _apply(self, finding: Finding, change: Change) -> bool:
        """Whether the change altered the current study."""
        if isinstance(change, Advise):
            if change not in self.notes:
                self.notes.append(change)
            return False
        if isinstance(change, RepeatTrial) and self.current != self.start:
            self._defer(finding, "the study before it may find a better trial, which is then the one to repeat")
            return False
        sides = _sides(change, self.current)
        taken = {self.owners[s] for s in sides if s in self.owners} - {finding.rule}
        if isinstance(change, SetRange):
            change = self._keep_owned_sides(change, finding.rule)
        if taken and not (isinstance(change, SetRange) and _sides(change, self.current)):
            if self._agrees(change):
                return False
            self._defer(finding, f"{_target(change)} was already set by {', '.join(sorted(taken))}")
            return False
        try:
            after = checked(change.apply(self.current))
        except ValidationError:
            past = self.current.parameters.get(_target(change))
            limited = past is not None and past.limits is not None
            why = "goes past its declared limits" if limited else "contradicts one of higher priority"
            self._defer(finding, f"its change of {_target(change)} {why}")
            return False
        if after == self.current:
            return False
        self.owners.update({side: finding.rule for side in _sides(change, self.current) if side not in self.owners})
        self.current = after
        return True

    def _agrees(self, change: Change) -> bool:
        """Whether a rule of higher priority has already added the same parameter, or moved the same field the same way."""
        if isinstance(change, AddParameter):
            return change.name in self.current.searched
        if not isinstance(change, SetField):
            return False
        before, now = getattr(self.start, change.field), getattr(self.current, change.field)
        return before is not None and (now - before) * (change.value - before) > 0

    def _keep_owned_sides(self, change: SetRange, rule: str) -> SetRange:
        """The change without the ends and the scale of the range that a rule of higher priority has set."""
        now = self.current.parameters.get(change.parameter)
        if now is None or not now.numeric:
            return change
        update: dict[str, float | str] = {}
        for side in ("low", "high", "scale"):
            owner = self.owners.get((change.parameter, side))
            if owner is not None and owner != rule:
                update[side] = getattr(now, side)
        if update and now.why and now.why != change.why:
            # Both rules made the range what it is.
            update["why"] = f"{now.why.rstrip('.')}. {change.why}"
        return change.model_copy(update=update)

    def _defer(self, finding: Finding, reason: str) -> None:
        if not any(d.rule == finding.rule and d.message == finding.message for d in self.deferred):
            self.deferred.append(Deferred(rule=finding.rule, message=finding.message, reason=reason))


def _repeats(finding: Finding) -> bool:
    """Whether the finding asks to repeat a trial: that comes after all changes of the space, and only where there are none."""
    return any(isinstance(c, RepeatTrial) for c in finding.changes)


def _target(change: Change) -> str:
    """What a change is about: a parameter, a field or the schedule."""
    if isinstance(change, SetRange | FixParameter):
        return change.parameter
    if isinstance(change, AddParameter):
        return change.name
    if isinstance(change, RepeatTrial):
        return "trial variance"
    if isinstance(change, Forbid):
        return " × ".join(change.region.where)
    if isinstance(change, Reparametrise):
        return change.parameter
    return change.field if isinstance(change, SetField) else "schedule"


def _sides(change: Change, spec: StudySpec) -> list[tuple[str, str]]:
    """The parts of a spec that a change sets: the ends and the scale of a range one by one, anything else as a whole."""
    target = _target(change)
    now = spec.parameters.get(target)
    if not isinstance(change, SetRange) or now is None or not now.numeric:
        return [(target, "low"), (target, "high")]
    parts = (("low", change.low, now.low), ("high", change.high, now.high), ("scale", change.scale, now.scale))
    return [(target, part) for part, new, old in parts if new != old]


def _with_notes(specs: Sequence[StudySpec], notes: Sequence[Advise]) -> list[StudySpec]:
    """What a space cannot hold goes with the study that is run first."""
    if not specs:
        return []
    first = specs[0]
    for note in notes:
        first = note.apply(first)
    return [first, *specs[1:]]
