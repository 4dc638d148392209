"""Collects the next studies while the findings are followed stage by stage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import get_args

from advisor.model.change import Advise, Change, RepeatTrial
from advisor.model.finding import Finding, Goal
from advisor.model.space import Side
from advisor.model.spec import Sampler, StudySpec
from advisor.planning import new_scores, rate_end
from advisor.planning.base import name_of_round, validate
from advisor.planning.closing import closing_study, more_telling
from advisor.planning.designs.catalogue import DESIGNS
from advisor.planning.designs.open_next import open_next
from advisor.planning.designs.rate_sweep import rate_sweep
from advisor.planning.follow import Follower
from advisor.planning.goals import comparison_goal, goal_of, manual_goal
from advisor.planning.stage_edits import StageEdits
from advisor.planning.stages import REGULARISATION, SPACE, Stage, ends_tuning, only_advice, only_narrows

WAITS = "comes first, so the effect of each change stays visible"
"""Reason why a finding waits until the first study has been run; the text starts with that study's goal."""
HARDLY_GAINS = "searching on would hardly gain more than noise"
"""Reason why a finding is not followed if there is no next study."""
HARMLESS: frozenset[Goal] = frozenset({"pipeline", "efficiency"})
"""Goals of findings whose advice does not change what the model learns. Such advice can be followed together with any change."""


@dataclass
class PlanMerger(Follower):
    """Follows the findings stage by stage and collects the next studies."""

    specs: list[StudySpec] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    """Indices in `specs` of the studies made from the draft; all other studies come from study designs."""
    savings: list[StageEdits] = field(default_factory=list)
    """Stages that are not part of a study yet, because they only save trials or steps, or only give advice."""
    early: list[Advise] = field(default_factory=list)
    """Advice in the first study's notes that comes from earlier stages than the study itself."""
    sweeps: bool = False
    """Whether the first study is a sweep of the learning rate, because only one setting was trained. Further changes depend on its
    result.
    """
    first: tuple[StageEdits, StudySpec] | None = None
    """The edits that made the first study, and the draft before these edits."""

    @property
    def broken(self) -> bool:
        """Whether a pipeline fault is critical, so that results show nothing about the search space and the training length."""
        return any(f.goal == "pipeline" and f.severity == "critical" for f in self.findings)

    # --- stages -----------------------------------------------------------------------------------------------------------------

    def add_sweep(self) -> None:
        """If only one setting was trained, add a sweep of the learning rate."""
        spec = rate_sweep(self.study, self.draft.current)
        if spec is not None:
            self.specs.append(self._noted(self._in_its_round(spec), self.savings))
            self.savings, self.sweeps = [], True

    def add_last(self, spec: StudySpec) -> None:
        """Add the study that the planner chooses if no rule recommends a change. If its trials are longer, defer advice on the
        training length.
        """
        longer = (spec.max_train_steps or 0) > (self.study.spec.max_train_steps or math.inf)
        later = [e for e in self.savings if longer and all(f.goal == "steps" for f in e.findings)]
        for finding in (f for edits in later for f in edits.findings):
            self.defer(finding, WAITS)
        now = [e for e in self.savings if e not in later]
        self.specs.append(self._noted(_with_notes(spec, [r for e in now for r in e.reasons_of_length]), now))

    def put_off(self, stage: Stage) -> None:
        """Defer the stage's findings. Advice that does not affect training is added to the notes of the learning-rate sweep."""
        findings = [f for f in self.findings if f.goal in stage]
        notes = [c for f in findings for c in f.changes if isinstance(c, Advise) and only_advice(f)]
        self._place_notes(StageEdits("", findings, notes=notes))
        for finding in findings:
            if not only_advice(finding):
                self.defer(finding, WAITS)

    def add_stage(self, stage: Stage) -> None:
        """Apply the changes of the stage's findings. Add a study if these changes need a separate one."""
        edits = StageEdits("", [f for f in self.findings if f.goal in stage])
        if stage is REGULARISATION and any(not isinstance(c, Advise) for f in edits.findings for c in f.changes):
            self._add_rate_end()
        before = self.draft.current
        for finding in sorted(edits.findings, key=lambda f: (_repeats_trial(f), self.depth(f))):
            self.follow(finding, edits, self.savings)
        if stage is SPACE and edits.request is None and self.draft.current != before and not self.specs:
            edits.changes += self._wider_rate()
        by_hand = next((f for f in edits.findings if self.needs_manual_fix(f)), None)
        if edits.request is None and by_hand is None and self.draft.current == before:
            self._place_notes(edits)
            return
        edits.goal = (
            goal_of(edits.by_priority, before, self.draft.current)
            if edits.changes or by_hand is None
            else manual_goal(str(by_hand.action))
        )
        compared = self._compared_again(edits)
        edits.goal = edits.goal if compared is None else compared
        idle = bool(self.study.searched) and not self.draft.current.searched and not edits.only_repeats
        idle = idle or (ends_tuning(self.findings) and only_narrows(edits.changes, before, self.draft.current))
        plain = by_hand is None and edits.request is None
        saves, shortens = (
            (edits.only_fixes or edits.only_restores(self.study.spec) or idle) and plain,
            edits.only_notes and edits.shorter_than(before) and plain,
        )
        if self.drafted and self.specs[-1].probe is None and (saves or self._saves_steps(edits, before)):
            self._fold(edits)
        elif saves or (shortens and not self.specs):
            self.savings.append(edits)
        else:
            if not self.specs and edits.request is None and by_hand is None:
                self.first = (edits, before)
            if any(e.only_restores(self.study.spec) for e in self.savings):
                edits.goal = f"Use the schedule of the study file and {edits.goal[0].lower()}{edits.goal[1:]}"
            self._add_study(edits)

    def _compared_again(self, edits: StageEdits) -> str | None:
        """If the stage only asks for more trials to compare a hyperparameter's values, return the stage's goal, else None."""
        leads = [f.subject for f in edits.findings if any(c in edits.changes for c in f.changes)]
        name = leads[0] if leads and edits.only_trials else None
        parameter = self.draft.current.searched.get(name or "")
        tuned = parameter is None or (parameter.numeric and parameter.role != "scientific")
        return None if tuned or name is None or parameter is None else comparison_goal(name, parameter)

    def _add_rate_end(self) -> None:
        """Add a study with a wider learning-rate range if the best trials lie at an end of the range and no study has been added so
        far.
        """
        before = self.draft.current
        if not self.specs and (changes := self._wider_rate()):
            self._add_study(StageEdits(goal_of(changes, before, self.draft.current), (), changes=changes))

    def _wider_rate(self) -> list[Change]:
        """If the best trials lie at an end of the learning rate's range, widen the range in the draft. Return [the change], or an
        empty list.

        Findings about the same end then no longer count as deferred, even if they are unlikely to be right.
        """
        before = self.draft.current
        change = None if self.broken else rate_end.wider(self.study, before)
        if change is None or not self.draft.apply(rate_end.__name__, change):
            return []
        ends = {s for s in get_args(Side) if getattr(change, s) != getattr(before.parameters[change.parameter], s)}
        same = [f for f in self.findings if f.goal == "boundary" and f.subject == change.parameter and f.side in ends]
        self.deferred = [d for d in self.deferred if (d.rule, d.message) not in [(f.rule, f.message) for f in same]]
        return [change]

    def tell_more(self) -> None:
        """Let the first study also answer open questions, if its only changes are more trials, shorter trials or different ranges.

        If it has too few trials for all hyperparameters, it searches only some of them. Later studies are then dropped, because
        they are based on the former search space.
        """
        if self.first is None:
            return
        edits, before = self.first
        if edits.only_repeats:
            self._search_before_repeats(edits, before)
            return
        opened = open_next(self.study, self.specs[0]) if len(self.specs) == 1 and not self.broken else None
        if opened is not None and (edits.only_trials or self.specs[0].searches_within(before)):
            for finding in (f for f in edits.findings if any(c in edits.changes for c in f.changes)):
                self.defer(
                    finding,
                    f"the next study searches {next(iter(opened.searched))} together with another hyperparameter",
                )
            self.specs, self.drafted = [opened], []
            return
        spec = more_telling(self.study, self.verdicts, self.rules, self.specs[0])
        fewer = spec.searched.keys() < self.specs[0].searched.keys()
        tells = edits.only_trials or edits.shorter_than(before) or self.specs[0].searches_within(before)
        moves = all(f.goal in (*SPACE, *REGULARISATION) or f.severity == "note" for f in edits.findings)
        if (fewer and (tells or moves)) or (tells and len(self.specs) == 1 and spec is not self.specs[0]):
            goal = spec.goal if edits.only_trials else edits.goal
            self.specs, self.drafted = [spec.model_copy(update={"goal": goal})], []

    def _search_before_repeats(self, edits: StageEdits, before: StudySpec) -> None:
        """Replace repeats of the best setting by a further search, if exploitation is justified or the space had too few trials.

        Longer training of the best settings also replaces repeats of a shorter training.
        """
        last = closing_study(self.study, self.verdicts, self.rules, before) if len(self.specs) == 1 else None
        if last is None:
            return
        fewer = bool(last.searched) and last.searched.keys() < self.study.searched.keys()
        longer = bool(last.settings) and (last.max_train_steps or 0) > (before.max_train_steps or math.inf)
        if fewer or longer or last.sampler.kind == "adaptive":
            for finding in edits.findings:
                self.defer(finding, "the next study may find a better setting; that one should be repeated")
            self.specs, self.drafted = [_with_notes(last, self.early)], []

    def put_off_for_good(self) -> None:
        """Defer the findings whose changes were part of a study that was dropped because it would hardly find a better setting."""
        for finding in self.settled:
            if not only_advice(finding):
                self.defer(finding, HARDLY_GAINS)

    def trained_again(self, spec: StudySpec) -> StudySpec:
        """Return a study that trains the best settings again, to run instead of `spec`. Defer the findings that led to `spec`."""
        again = new_scores.train_again(self.study, spec, self.draft.start, self.findings)
        for finding in self.settled if again is not spec else ():
            if not only_advice(finding) and not new_scores.fixed(again, [finding]):
                self.defer(finding, WAITS)
        return again

    def add_savings(self, *, steps: bool = False) -> None:
        """Add a study for stages that only save trials, unless another study includes their changes or would be only the best trial
        again.

        steps: also add a study for stages that only save steps. By default, such stages wait until nothing else is left to change.
        """
        start = self.draft.start
        goals = [e.goal for e in self.savings if e.changes and (steps or not e.shorter_than(start))]
        if goals and not self._is_best_trial(self.draft.current):
            self._add_study(StageEdits(goals[-1], ()))

    def _is_best_trial(self, spec: StudySpec) -> bool:
        """Return whether the study would only train the best trial's setting again."""
        best = self.study.ranked()[:1]
        values = {n: p.value for n, p in spec.parameters.items() if p.role == "fixed"}
        return not spec.searched and bool(best) and all(best[0].params.get(n) == v for n, v in values.items())

    def _saves_steps(self, edits: StageEdits, before: StudySpec) -> bool:
        """Return whether this stage only shortens training, while the only study planned so far only narrows the search space."""
        first, start = self.specs[0], self.draft.start
        narrows = len(self.specs) == 1 and first.searches_within(start) and first.schedule == start.schedule
        return narrows and not self.broken and edits.request is None and edits.shorter_than(before) and edits.sure

    def _fold(self, edits: StageEdits) -> None:
        """Apply the stage's changes to the planned studies, because these changes cost nothing. Studies from study designs stay
        unchanged.
        """
        for i in self.drafted:
            for change in edits.changes:
                self.specs[i] = validate(change.apply(self.specs[i]))
        self.specs[0] = self._noted(_with_notes(self.specs[0], edits.reasons_of_length), [edits])

    def _place_notes(self, edits: StageEdits) -> None:
        """Place the advice of a stage without changes. If no study is planned yet, keep it for the first study. Otherwise, add
        harmless advice to the first study's notes and defer all other advice.
        """
        if not self.specs:
            self.savings.append(edits)
            return
        for finding in edits.findings:
            notes = [c for c in finding.changes if isinstance(c, Advise) and c in edits.notes]
            if notes and finding.goal in HARMLESS:
                self.specs[0] = _with_notes(self.specs[0], notes)
            elif notes:
                self.defer(finding, WAITS)

    def _noted(self, spec: StudySpec, stages: Sequence[StageEdits]) -> StudySpec:
        """Return the spec with the advice of these stages added to its notes."""
        return _with_notes(spec, [note for edits in stages for note in edits.notes])

    def _add_study(self, edits: StageEdits) -> None:
        """Add the stage's study: the requested study design; without a request, the draft."""
        request, current = edits.request, self.draft.current
        designed = DESIGNS[request.plan](request, self.study, current) if request is not None else ()
        spec = designed if isinstance(designed, StudySpec) else current.model_copy(update={"goal": edits.goal})
        repeated = {n for n in current.notes if any(n in earlier.notes for earlier in self.specs)}
        spec = spec.model_copy(update={"notes": tuple(n for n in spec.notes if n not in repeated)})
        if self.specs:
            for finding in (f for stage in (*self.savings, edits) for f in stage.findings):
                self.defer(finding, WAITS)
        if not self.specs:
            self.early = [note for stage in self.savings for note in stage.notes]
        plain = self._in_its_round(spec)
        self.specs.append(self._noted(_with_notes(plain, edits.reasons_of_length), [*self.savings, edits]))
        self.savings = []
        if request is None:
            self.drafted.append(len(self.specs) - 1)
            self.draft.current = plain.model_copy(update={"notes": ()})

    def _in_its_round(self, spec: StudySpec) -> StudySpec:
        """Return the study with the name, parent, round number and sampler seed of its place in the sequence of next studies."""
        start, last = self.draft.start, self.specs[-1] if self.specs else None
        number = start.round if last is None else last.round + 1
        update = {
            "study": name_of_round(self.draft.current, number),
            "parent": start.parent if last is None else last.study,
            "round": number,
            # A probe must train each of its choices once, which random and adaptive samplers cannot guarantee.
            "sampler": Sampler(kind="halton" if spec.probe else spec.sampler.kind, seed=number),
            "baseline": self.draft.current if spec.probe else None,
        }
        return validate(spec.model_copy(update=update))


def _repeats_trial(finding: Finding) -> bool:
    """Return whether the finding asks to repeat a trial. Repeats come last, and only if no other change is made."""
    return any(isinstance(c, RepeatTrial) for c in finding.changes)


def _with_notes(spec: StudySpec, notes: Sequence[Advise]) -> StudySpec:
    for note in notes:
        spec = note.apply(spec)
    return spec
