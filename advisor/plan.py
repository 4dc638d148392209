"""Folds what the rules found into the next studies: one goal each, by the playbook's priorities, conflicts settled here.

Playbook: "Choosing the goal for the next round of experiments". Findings are taken in the order of `STAGES`; each stage with
something to change becomes one study, on top of the stages before it. Of two changes that contradict each other the one of higher
priority is made and the other is put off, with the reason. What a finding that another one explains asks for waits until the cause
is settled (`advisor.causes`), where the cause comes first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from advisor.causes import cause_of
from advisor.finding import (
    AddParameter,
    Advise,
    Change,
    Finding,
    FixParameter,
    Goal,
    RepeatTrial,
    SetField,
    SetRange,
    Verdict,
    by_priority,
)
from advisor.readings import repeats
from advisor.space import as_number, is_learning_rate
from advisor.spec import Parameter, Sampler, StudySpec
from advisor.study import Study, Trial

LEAST_CONFIDENCE = 0.5
"""A finding less sure than this is shown but changes no study: it is as likely wrong as right."""

JUST_ABOVE = 2.0
"""Learning rates up to this multiple of the best are just above it: the playbook's probe for instability is at twice the best."""

FEWEST_FEASIBLE = 5
"""Feasible trials with fewer of which the best one says little about where the best settings are."""

REPEATS = 5
"""Seeds with which the best trial is repeated when nothing else is left to do: the fewest that show a spread."""


REPEAT_GOAL = "Measure trial variance: the best trial again with other seeds"


@dataclass(frozen=True)
class Stage:
    """A goal that a study can have, and the findings that call for it."""

    goals: tuple[Goal, ...]
    title: str
    """What the study is for, as the start of its goal."""


_STABILITY = Stage(("stability",), "Make training stable")
_SPACE = Stage(("infeasible", "boundary", "sampling"), "Search the right space")

STAGES = (
    Stage(("pipeline",), "Repair the training pipeline"),
    _STABILITY,
    _SPACE,
    Stage(("steps",), "Train for the right number of steps"),
    Stage(("regularisation",), "Reduce overfitting"),
    Stage(("efficiency",), "Get more out of each trial"),
    Stage(("exploitation",), "Find the best setting"),
)


class Deferred(BaseModel):
    """A finding that the first study leaves alone, and why."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rule: str
    message: str
    reason: str


class Plan(BaseModel):
    """The next studies, the one to run first at the head, and what was put off."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    specs: tuple[StudySpec, ...]
    deferred: tuple[Deferred, ...]


def file_names(specs: Sequence[StudySpec]) -> list[str]:
    """A file name for each spec, in order: `1-search-the-right-space.yaml`."""
    return [f"{i}-{_slug(spec.goal.partition(':')[0])}.yaml" for i, spec in enumerate(specs, 1)]


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40] or "study"


def plan(study: Study, verdicts: Iterable[Verdict]) -> Plan:
    """The next studies for what was found in this one; with nothing to change, the best trial is repeated with other seeds."""
    findings = by_priority(f for v in verdicts for f in v.findings)
    base = _base(study)
    draft = _Draft(base, base, findings)
    for stage in _in_order(study, findings):
        draft.add_stage(stage, [f for f in findings if f.goal in stage.goals])
    specs = draft.specs or _repeat_best(study, draft.current)
    return Plan(specs=tuple(_with_notes(specs, draft.notes)), deferred=tuple(draft.deferred))


def _in_order(study: Study, findings: Sequence[Finding]) -> Sequence[Stage]:
    """The stages by priority; but the space comes before stability where the instability keeps nobody from anything.

    Instability matters only where it forces the learning rate too low (playbook: "Identifying unstable workloads"). It does not
    while the best trials crowd the low end of the learning rates, nor where only trials far above the best one's are unstable; and
    with next to no feasible trial there is no best one to speak of, so that a space with more of them comes first.
    """
    lower = any(f.goal == "boundary" and f.side == "low" and is_learning_rate(f.subject or "") for f in findings)
    region = any(f.goal == "infeasible" and not (f.explained_by and _only_advice(f)) for f in findings)
    few = region and int(study.feasible.sum()) < FEWEST_FEASIBLE
    limiting = any(f.goal == "stability" and _limits(study, f) for f in findings)
    if limiting and not lower and not few:
        return STAGES
    return [_SPACE if s is _STABILITY else _STABILITY if s is _SPACE else s for s in STAGES]


def _limits(study: Study, finding: Finding) -> bool:
    """Whether the finding shows instability at, below or just above the best trial's learning rate, or knows of none."""
    best = study.ranked()[:1]
    rate = next((name for name in study.searched if is_learning_rate(name) and best and name in best[0].params), None)
    if rate is None:
        return True
    limit = JUST_ABOVE * as_number(best[0].params[rate])
    shown = [t for t in study.trials if t.id in finding.trials]
    return not shown or any(not as_number(t.params.get(rate)) > limit for t in shown)


# --- folding --------------------------------------------------------------------------------------------------------------------


@dataclass
class _Draft:
    """The studies so far, and who changed what in them."""

    start: StudySpec
    """The study before any change."""
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

    def add_stage(self, stage: Stage, findings: Sequence[Finding]) -> None:
        """Apply the findings' changes; if any took effect, they are a study of their own."""
        before = self.current
        subjects: list[str] = []
        for finding in sorted(findings, key=lambda f: (_repeats(f), self._depth(f))):
            if finding.confidence < LEAST_CONFIDENCE:
                self._defer(finding, f"it is {finding.confidence:.0%} sure, too little to change a study")
                continue
            if (cause := self._waits_for(finding)) is not None:
                self._defer(finding, f"it follows from what {cause.rule} found and may be gone once that is settled")
                self.settled.append(finding)
                continue
            changed = [c for c in finding.changes if self._apply(finding, c)]
            subjects += [s for c in changed if (s := _target(c)) not in subjects]
            if changed or any(isinstance(c, Advise) for c in finding.changes):
                self.settled.append(finding)
        if self.current == before and not any(self._must_be_mended(f) for f in findings):
            return
        goal = f"{stage.title}: {', '.join(subjects) or 'see the notes, then repeat the study'}"
        if self.current.seeds is not None and "trial variance" in subjects:
            goal = REPEAT_GOAL
        follows = before.parent if not self.specs else self.specs[-1].study
        number = before.round if not self.specs else self.specs[-1].round + 1
        name = re.sub(r"-round-\d+$", "", self.current.study) + f"-round-{number}"
        update = {"goal": goal, "study": name, "parent": follows, "round": number, "sampler": Sampler(seed=number)}
        self.current = self.current.model_copy(update=update)
        if self.specs:
            for finding in findings:
                self._defer(finding, f"it comes after the goal “{self.specs[0].goal}”, which it would blur")
        self.specs.append(self.current)

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
            after = StudySpec.model_validate(change.apply(self.current).model_dump())
        except ValidationError:
            self._defer(finding, f"its change of {_target(change)} contradicts one of higher priority")
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
        update = {}
        for side in ("low", "high", "scale"):
            owner = self.owners.get((change.parameter, side))
            if owner is not None and owner != rule:
                update[side] = getattr(now, side)
        return change.model_copy(update=update)

    def _defer(self, finding: Finding, reason: str) -> None:
        if not any(d.rule == finding.rule and d.message == finding.message for d in self.deferred):
            self.deferred.append(Deferred(rule=finding.rule, message=finding.message, reason=reason))


def _repeats(finding: Finding) -> bool:
    """Whether the finding asks to repeat a trial: that comes after all changes of the space, and only where there are none."""
    return any(isinstance(c, RepeatTrial) for c in finding.changes)


def _only_advice(finding: Finding) -> bool:
    """Whether the finding asks for nothing that a study can hold."""
    return all(isinstance(c, Advise) for c in finding.changes)


def _target(change: Change) -> str:
    """What a change is about: a parameter, a field or the schedule."""
    if isinstance(change, SetRange | FixParameter):
        return change.parameter
    if isinstance(change, AddParameter):
        return change.name
    if isinstance(change, RepeatTrial):
        return "trial variance"
    return change.field if isinstance(change, SetField) else "schedule"


def _sides(change: Change, spec: StudySpec) -> list[tuple[str, str]]:
    """The parts of a spec that a change sets: the ends and the scale of a range one by one, anything else as a whole."""
    target = _target(change)
    now = spec.parameters.get(target)
    if not isinstance(change, SetRange) or now is None or not now.numeric:
        return [(target, "low"), (target, "high")]
    parts = (("low", change.low, now.low), ("high", change.high, now.high), ("scale", change.scale, now.scale))
    return [(target, part) for part, new, old in parts if new != old]


# --- the studies around the changes ---------------------------------------------------------------------------------------------


def _base(study: Study) -> StudySpec:
    """The study to change: this one, a round on, with its fixed parameters and its number of trials."""
    spec = study.spec
    parameters = {name: _carried(p, name in study.inferred) for name, p in spec.parameters.items()}
    return StudySpec(
        study=spec.study,
        round=spec.round + 1,
        parent=spec.study,
        objective=spec.objective,
        parameters=parameters,
        trials=spec.trials or max(int(study.ended.sum()), 1),
        sampler=spec.sampler,
        max_train_steps=spec.max_train_steps,
        evaluate_every=spec.evaluate_every or _evaluation_interval(study),
        seeds=spec.seeds,
        schedule=spec.schedule,
    )


def _carried(parameter: Parameter, inferred: bool) -> Parameter:
    if parameter.role == "fixed":
        return parameter
    why = "as in the round before, where the trials showed this range" if inferred else "as in the round before"
    return parameter.model_copy(update={"why": why})


def _evaluation_interval(study: Study) -> int | None:
    """Steps between two evaluations in most trials; None where they are irregular or unknown."""
    gaps = [np.diff(c.steps) for t in study.trials if len(c := study.cost_curve(t)) > 2]
    if not gaps:
        return None
    every = np.concatenate(gaps)
    usual = int(np.median(every))
    return usual if usual >= 1 and np.mean(every == usual) > 0.9 else None


def _repeat_best(study: Study, base: StudySpec) -> list[StudySpec]:
    """The best trial again with other seeds: what is left when no rule asks for a change."""
    ranked = study.ranked()
    if not ranked or study.probe is not None:
        return []
    best = ranked[0]
    if not best.params or len(_seeds_of(study, best)) >= REPEATS:
        return []
    name = re.sub(r"-round-\d+$", "", base.study) + f"-round-{base.round}"
    repeat = RepeatTrial(parameters=dict(best.params), seeds=REPEATS, why="the trial variance is not known well")
    return [repeat.apply(base).model_copy(update={"study": name, "goal": REPEAT_GOAL})]


def _seeds_of(study: Study, trial: Trial) -> list[Trial]:
    """The runs of the trial's setting with different seeds."""
    return next((list(s.trials) for s in repeats.settings(study) if repeats.key(s.trials[0]) == repeats.key(trial)), [])


def _with_notes(specs: Sequence[StudySpec], notes: Sequence[Advise]) -> list[StudySpec]:
    """What a space cannot hold goes with the study that is run first."""
    if not specs:
        return []
    first = specs[0]
    for note in notes:
        first = note.apply(first)
    return [first, *specs[1:]]
