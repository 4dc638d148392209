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
"""Maximum ratio of an unstable learning rate to the best learning rate at which instability limits training, as in the
playbook."""

MIN_CONFIDENCE = 0.5
"""Minimum confidence at which the changes of a finding are applied; below it, the finding is probably wrong."""
MIN_SURE_CONFIDENCE = 0.7
"""Minimum confidence at which a finding counts as sure, so that it may change the order of goals."""
MIN_FEASIBLE_TRIALS = 5
"""Minimum number of feasible trials. With fewer feasible trials, the best trial is weak evidence of where good settings lie."""

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

    A sure finding on the training length comes before an unsure finding on the end of a range, except the high end of a
    learning-rate range: at too low a rate, every training seems too short, and a higher rate costs no steps. Overfitting that
    does not harm the objective comes last; harmful overfitting comes before findings on the training length that are only
    notes, because regularised trials may need more steps.

    Instability matters only if it limits training to learning rates that are too low (playbook: "Identifying unstable
    workloads"). Instability does not matter if the best trials lie at the low end of the learning-rate range, or if all
    unstable trials have learning rates far above the best rate. With fewer than `MIN_FEASIBLE_TRIALS` feasible trials, the best
    trial is unreliable, so finding a space with more feasible trials comes first."""
    wants_lower_rate = any(f.goal == "boundary" and f.side == "low" and is_learning_rate(f.subject or "") for f in findings)
    has_infeasible = any(f.goal == "infeasible" and not (f.explained_by and recommends_only_advice(f)) for f in findings)
    has_few_feasible = has_infeasible and int(study.feasible.sum()) < MIN_FEASIBLE_TRIALS
    limits_training = any(f.goal == "stability" and f.changes and _instability_limits_training(study, f) for f in findings)
    if limits_training and not wants_lower_rate and not has_few_feasible:
        stages = list(STAGES)
    else:
        stages = [SPACE_STAGE if s is STABILITY_STAGE else STABILITY_STAGE if s is SPACE_STAGE else s for s in STAGES]
    regularising = [f for f in findings if f.goal in REGULARISATION_STAGE]
    length_only_notes = {f.severity for f in findings if f.goal in _TRAINING_LENGTH_STAGE} == {"note"}
    if {f.severity for f in regularising} == {"note"}:
        stages.sort(key=lambda stage: stage is REGULARISATION_STAGE)
    elif length_only_notes and any(f.confidence >= MIN_SURE_CONFIDENCE for f in regularising if f.severity != "note"):
        stages.remove(REGULARISATION_STAGE)
        stages.insert(stages.index(_TRAINING_LENGTH_STAGE), REGULARISATION_STAGE)
    if _only_length_is_sure(findings):
        stages.remove(SPACE_STAGE)
        stages.insert(stages.index(_TRAINING_LENGTH_STAGE) + 1, SPACE_STAGE)
    return stages


def _only_length_is_sure(findings: Sequence[Finding]) -> bool:
    causes = [f for f in findings if f.explained_by is None and not all(map(only_saves_trials, f.changes))]
    causes = [f for f in causes if not recommends_only_advice(f)]
    earlier_causes = [f for f in causes if f.goal in (*STABILITY_STAGE, *SPACE_STAGE)]
    length_sure = any(f.goal == "steps" and f.severity == "warning" and f.confidence >= MIN_SURE_CONFIDENCE for f in causes)
    if any(_wants_higher_rate(f) and f.confidence >= MIN_CONFIDENCE for f in earlier_causes):
        return False
    are_unsure_boundaries = all(f.goal == "boundary" and f.confidence < MIN_SURE_CONFIDENCE for f in earlier_causes)
    return length_sure and bool(earlier_causes) and are_unsure_boundaries


def _wants_higher_rate(finding: Finding) -> bool:
    return finding.goal == "boundary" and finding.side == "high" and is_learning_rate(finding.subject or "")


def _instability_limits_training(study: Study, finding: Finding) -> bool:
    """Return True if an unstable trial has a learning rate near or below the best learning rate, or if rates are unknown."""
    ranked = study.ranked()[:1]
    rate = next((name for name in study.searched if is_learning_rate(name) and ranked and name in ranked[0].params), None)
    if rate is None:
        return True
    max_unstable_rate = MAX_UNSTABLE_TO_BEST_RATE * as_number(ranked[0].params[rate])
    unstable_trials = [t for t in study.trials if t.id in finding.trials]
    return not unstable_trials or any(not as_number(t.params.get(rate)) > max_unstable_rate for t in unstable_trials)


def says_to_stop_tuning(findings: Sequence[Finding]) -> bool:
    """Return whether a sure finding says that more trials in the search space would bring no improvement."""
    sure_plans = (c for f in findings if f.confidence >= MIN_SURE_CONFIDENCE for c in f.changes if isinstance(c, RunPlan))
    return any(change.plan == "exploit" for change in sure_plans)


def adopts_now(finding: Finding) -> bool:
    """Return whether the finding's action is advice to adopt a setting, which repeats of the setting can only confirm."""
    adopts = any(isinstance(c, Advise) and c.text == str(finding.action) for c in finding.changes)
    return finding.goal == "exploitation" and adopts


def recommends_only_advice(finding: Finding) -> bool:
    """Return whether all recommendations of the finding are advice to the user, which a study file cannot express."""
    return all(isinstance(c, Advise) for c in finding.changes)


@dataclass
class StageEdits:
    """The edits that the findings of one stage make to the next study."""

    goal: str
    findings: Sequence[Finding]
    changes: list[Change] = field(default_factory=list)
    """Changes of the stage's findings that altered the draft."""
    request: RunPlan | None = None
    """The request for the study design that creates the stage's study, or None if the draft becomes the stage's study."""
    notes: list[Advise] = field(default_factory=list)
    """Advice to the user in the stage's findings: recommendations that a study file cannot express."""

    @property
    def changes_by_priority(self) -> list[Change]:
        """The changes in the order of their findings, most important first. Changes from a study design come before all others."""
        requested_changes = [c for f in self.findings for c in f.changes]
        return sorted(self.changes, key=lambda c: requested_changes.index(c) if c in requested_changes else -1)

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
        """Whether the stage only fixes unimportant hyperparameters or drops inferior values."""
        return all(map(only_saves_trials, self.changes))

    def only_restores_schedule(self, spec: StudySpec) -> bool:
        """Return whether the stage only restores the learning-rate schedule that `spec` already declared."""
        declared_schedule = dict(spec.schedule or {}).items()
        return self._consists_only_of(lambda c: isinstance(c, SetSchedule) and c.schedule.items() <= declared_schedule)

    @property
    def only_adds_trials(self) -> bool:
        return self._consists_only_of(lambda c: isinstance(c, SetField) and c.field == "trials")

    @property
    def only_changes_ranges(self) -> bool:
        return self._consists_only_of(lambda c: isinstance(c, SetRange))

    @property
    def only_repeats_trial(self) -> bool:
        return self._consists_only_of(lambda c: isinstance(c, RepeatTrial))

    def only_shortens_training(self, before: StudySpec) -> bool:
        old = before.max_train_steps or 0
        return self._consists_only_of(lambda c: isinstance(c, SetField) and c.field == "max_train_steps" and c.value < old)

    def _consists_only_of(self, test: Callable[[Change], bool]) -> bool:
        return bool(self.changes) and all(map(test, self.changes))
