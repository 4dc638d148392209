"""The edits that the findings of one stage make to the next study, and properties that determine whether these edits need a
separate study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from advisor.model.change import Advise, Change, RepeatTrial, RunPlan, SetField, SetSchedule, only_saves_trials
from advisor.model.finding import Finding
from advisor.model.spec import StudySpec
from advisor.planning.stages import MIN_SURE_CONFIDENCE


@dataclass
class StageEdits:
    """The changes and notes that the findings of one stage add to the next study."""

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
    def only_saves_trials(self) -> bool:
        """Whether the stage only fixed unimportant hyperparameters or dropped inferior values, which saves trials but yields no
        better result."""
        return all(map(only_saves_trials, self.changes))

    def only_restores_schedule(self, spec: StudySpec) -> bool:
        """Return whether the stage only restores the learning-rate schedule that `spec` already declared. Restoring the
        schedule needs no separate study."""
        asked = dict(spec.schedule or {}).items()
        return bool(self.changes) and all(isinstance(c, SetSchedule) and c.schedule.items() <= asked for c in self.changes)

    @property
    def field_change_reasons(self) -> list[Advise]:
        """The reasons for changed study fields, such as the number of steps, as notes for the study file."""
        return [Advise(text=c.why) for c in self.changes if isinstance(c, SetField) and c.field != "trials"]

    @property
    def only_adds_trials(self) -> bool:
        """Whether the stage only asks for more trials."""
        return bool(self.changes) and all(isinstance(c, SetField) and c.field == "trials" for c in self.changes)

    @property
    def has_only_notes(self) -> bool:
        """Whether all findings that changed the draft have the severity "note"."""
        return all(f.severity == "note" for f in self.findings if any(c in self.changes for c in f.changes))

    @property
    def only_repeats_trial(self) -> bool:
        """Whether the stage only repeats a trial."""
        return bool(self.changes) and all(isinstance(c, RepeatTrial) for c in self.changes)

    def only_shortens_training(self, before: StudySpec) -> bool:
        """Return whether the stage only shortens training."""
        old = before.max_train_steps
        return bool(self.changes) and all(
            isinstance(c, SetField) and c.field == "max_train_steps" and old is not None and c.value < old for c in self.changes
        )

    @property
    def is_sure(self) -> bool:
        """Whether all findings that changed the draft have a confidence of at least `MIN_SURE_CONFIDENCE`."""
        changing = [f for f in self.findings if any(c in self.changes for c in f.changes)]
        return all(f.confidence >= MIN_SURE_CONFIDENCE for f in changing)
