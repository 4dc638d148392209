"""The edits that the findings of one stage make to the next study, and what kind of study they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from advisor.model.change import Advise, Change, RepeatTrial, RunPlan, SetField, SetSchedule, only_saves
from advisor.model.finding import Finding
from advisor.model.spec import StudySpec
from advisor.planning.stages import SURE


@dataclass
class StageEdits:
    """Changes that the findings of one stage made."""

    goal: str
    findings: Sequence[Finding]
    changes: list[Change] = field(default_factory=list)
    """Changes that altered the draft."""
    request: RunPlan | None = None
    """The requested design that creates the stage's study."""
    notes: list[Advise] = field(default_factory=list)
    """Advice of the findings, which a search space cannot express."""

    @property
    def by_priority(self) -> list[Change]:
        """The changes in the order of their findings, the most important first; changes of designs precede them."""
        asked = [c for f in self.findings for c in f.changes]
        return sorted(self.changes, key=lambda c: asked.index(c) if c in asked else -1)

    @property
    def only_fixes(self) -> bool:
        """Whether the stage only fixed hyperparameters of little effect or dropped values: that saves trials but yields no gain."""
        return all(map(only_saves, self.changes))

    def only_restores(self, spec: StudySpec) -> bool:
        """Return whether the stage only sets the schedule that `spec` asked for: such a study needs no trials of its own."""
        asked = dict(spec.schedule or {}).items()
        return bool(self.changes) and all(
            isinstance(c, SetSchedule) and c.schedule.items() <= asked for c in self.changes
        )

    @property
    def reasons_of_length(self) -> list[Advise]:
        """The reasons for the number of steps and similar choices, for the notes of the study file."""
        return [Advise(text=c.why) for c in self.changes if isinstance(c, SetField) and c.field != "trials"]

    @property
    def only_trials(self) -> bool:
        """Whether the stage only asks for more trials."""
        return bool(self.changes) and all(isinstance(c, SetField) and c.field == "trials" for c in self.changes)

    @property
    def only_notes(self) -> bool:
        """Whether all findings that changed anything are notes."""
        return all(f.severity == "note" for f in self.findings if any(c in self.changes for c in f.changes))

    @property
    def only_repeats(self) -> bool:
        """Whether the stage only repeats a trial."""
        return bool(self.changes) and all(isinstance(c, RepeatTrial) for c in self.changes)

    def shorter_than(self, before: StudySpec) -> bool:
        """Return whether the stage only shortens training."""
        old = before.max_train_steps
        return bool(self.changes) and all(
            isinstance(c, SetField) and c.field == "max_train_steps" and old is not None and c.value < old
            for c in self.changes
        )

    @property
    def sure(self) -> bool:
        """Whether all findings that changed anything are sure."""
        changing = [f for f in self.findings if any(c in self.changes for c in f.changes)]
        return all(f.confidence >= SURE for f in changing)
