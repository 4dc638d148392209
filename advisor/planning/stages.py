"""The stages of planning: the possible goals of a study, in the playbook's order of priority.

Playbook: "Choosing the goal for the next round of experiments". Every study has one goal. Tuning for a goal pays off only after
the goals of all earlier stages have been met."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from advisor.model.change import Advise, Change, RepeatTrial, RunPlan, SetField, SetRange, SetSchedule, only_saves_trials
from advisor.model.finding import Finding, Goal
from advisor.model.space import as_number, is_learning_rate
from advisor.model.spec import StudySpec
from advisor.model.study import Study

MAX_UNSTABLE_TO_BEST_RATE = 2.0
"""Instability limits training if an unstable learning rate is at most this many times the best one, as in the playbook's test
of a doubled learning rate."""

MIN_CONFIDENCE = 0.5
"""Minimum confidence at which the changes of a finding are applied; below this confidence, the finding is more likely wrong
than right."""
MIN_SURE_CONFIDENCE = 0.7
"""Minimum confidence at which a finding may change the order of goals."""
MIN_FEASIBLE = 5
"""With fewer feasible trials than this, the best one is weak evidence of where good settings lie."""

Stage: TypeAlias = tuple[Goal, ...]
"""A possible goal of a study, represented by the topics of the findings that need a study with this goal."""

STABILITY_STAGE: Stage = ("stability",)
SPACE_STAGE: Stage = ("infeasible", "boundary", "sampling")
_TRAINING_LENGTH_STAGE: Stage = ("steps",)
REGULARISATION_STAGE: Stage = ("regularisation",)

STAGES: tuple[Stage, ...] = (
    ("pipeline",),
    STABILITY_STAGE,
    SPACE_STAGE,
    _TRAINING_LENGTH_STAGE,
    REGULARISATION_STAGE,
    ("efficiency",),
    ("exploitation",),
)


def stage_order(study: Study, findings: Sequence[Finding]) -> Sequence[Stage]:
    """Return the stages by priority. By default, stability comes first; if instability does not limit training, the search
    space comes first.

    A sure finding on the training length comes before an unsure finding on the end of a range. Overfitting that does not harm
    the objective comes last; harmful overfitting comes before findings on the training length that are only notes, because
    regularised trials may need more steps.

    Instability matters only if it limits training to learning rates that are too low (playbook: "Identifying unstable
    workloads"). Instability does not matter if the best trials lie at the low end of the learning-rate range, or if all
    unstable trials have learning rates far above the best rate. With fewer feasible trials than `MIN_FEASIBLE`, the best trial
    is unreliable, so finding a space with more feasible trials comes first."""
    wants_lower = any(f.goal == "boundary" and f.side == "low" and is_learning_rate(f.subject or "") for f in findings)
    infeasible = any(f.goal == "infeasible" and not (f.explained_by and recommends_only_advice(f)) for f in findings)
    few_feasible = infeasible and int(study.feasible.sum()) < MIN_FEASIBLE
    limits = any(f.goal == "stability" and f.changes and _instability_limits_training(study, f) for f in findings)
    if limits and not wants_lower and not few_feasible:
        ordered = list(STAGES)
    else:
        ordered = [SPACE_STAGE if s is STABILITY_STAGE else STABILITY_STAGE if s is SPACE_STAGE else s for s in STAGES]
    regularisation = [f for f in findings if f.goal in REGULARISATION_STAGE]
    length_only_notes = {f.severity for f in findings if f.goal in _TRAINING_LENGTH_STAGE} == {"note"}
    if {f.severity for f in regularisation} == {"note"}:
        ordered.sort(key=lambda stage: stage is REGULARISATION_STAGE)
    elif length_only_notes and any(f.confidence >= MIN_SURE_CONFIDENCE for f in regularisation if f.severity != "note"):
        ordered.remove(REGULARISATION_STAGE)
        ordered.insert(ordered.index(_TRAINING_LENGTH_STAGE), REGULARISATION_STAGE)
    if _only_length_is_sure(findings):
        ordered.remove(SPACE_STAGE)
        ordered.insert(ordered.index(_TRAINING_LENGTH_STAGE) + 1, SPACE_STAGE)
    return ordered


def _only_length_is_sure(findings: Sequence[Finding]) -> bool:
    causes = [f for f in findings if f.explained_by is None and not all(map(only_saves_trials, f.changes))]
    causes = [f for f in causes if not recommends_only_advice(f)]
    earlier = [f for f in causes if f.goal in (*STABILITY_STAGE, *SPACE_STAGE)]
    length = any(f.goal == "steps" and f.severity == "warning" and f.confidence >= MIN_SURE_CONFIDENCE for f in causes)
    return length and bool(earlier) and all(f.goal == "boundary" and f.confidence < MIN_SURE_CONFIDENCE for f in earlier)


def _instability_limits_training(study: Study, finding: Finding) -> bool:
    """True if an unstable trial has a learning rate near or below the best one, or learning rates are unknown."""
    best = study.ranked()[:1]
    rate = next((name for name in study.searched if is_learning_rate(name) and best and name in best[0].params), None)
    if rate is None:
        return True
    limit = MAX_UNSTABLE_TO_BEST_RATE * as_number(best[0].params[rate])
    unstable = [t for t in study.trials if t.id in finding.trials]
    return not unstable or any(not as_number(t.params.get(rate)) > limit for t in unstable)


def says_to_stop_tuning(findings: Sequence[Finding]) -> bool:
    """Return whether a sure finding says that more trials of this search space would gain nothing."""
    plans = (c for f in findings if f.confidence >= MIN_SURE_CONFIDENCE for c in f.changes if isinstance(c, RunPlan))
    return any(change.plan == "exploit" for change in plans)


def recommends_only_advice(finding: Finding) -> bool:
    """Return whether the finding recommends only advice, which a search space cannot express."""
    return all(isinstance(c, Advise) for c in finding.changes)


@dataclass
class StageEdits:
    """The edits that the findings of one stage make to the next study."""

    goal: str
    findings: Sequence[Finding]
    changes: list[Change] = field(default_factory=list)
    """Changes of the stage's findings that altered the draft."""
    request: RunPlan | None = None
    """The request for a study design that creates the stage's study; None to use the draft."""
    notes: list[Advise] = field(default_factory=list)
    """Advice in the stage's findings: recommendations that a search space cannot express."""

    @property
    def changes_by_priority(self) -> list[Change]:
        """The changes in the order of their findings, most important first. Changes from a study design come before all others."""
        asked = [c for f in self.findings for c in f.changes]
        return sorted(self.changes, key=lambda c: asked.index(c) if c in asked else -1)

    @property
    def changing_findings(self) -> list[Finding]:
        """The findings that changed the draft."""
        return [f for f in self.findings if any(c in self.changes for c in f.changes)]

    @property
    def field_change_reasons(self) -> list[Advise]:
        """The reasons for changed study fields, such as the number of steps, as notes for the study file."""
        return [Advise(text=c.why) for c in self.changes if isinstance(c, SetField) and c.field != "trials"]

    @property
    def only_saves_trials(self) -> bool:
        """Whether the stage only fixed unimportant hyperparameters or dropped inferior values, which yields no better result."""
        return all(map(only_saves_trials, self.changes))

    def only_restores_schedule(self, spec: StudySpec) -> bool:
        """Return whether the stage only restores the learning-rate schedule that `spec` already declared."""
        asked = dict(spec.schedule or {}).items()
        return self._only(lambda c: isinstance(c, SetSchedule) and c.schedule.items() <= asked)

    @property
    def only_adds_trials(self) -> bool:
        return self._only(lambda c: isinstance(c, SetField) and c.field == "trials")

    @property
    def only_changes_ranges(self) -> bool:
        return self._only(lambda c: isinstance(c, SetRange))

    @property
    def only_repeats_trial(self) -> bool:
        return self._only(lambda c: isinstance(c, RepeatTrial))

    def only_shortens_training(self, before: StudySpec) -> bool:
        old = before.max_train_steps or 0
        return self._only(lambda c: isinstance(c, SetField) and c.field == "max_train_steps" and c.value < old)

    def _only(self, test: Callable[[Change], bool]) -> bool:
        return bool(self.changes) and all(map(test, self.changes))
