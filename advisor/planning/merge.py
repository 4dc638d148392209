"""Combines the changes of all findings into the next studies.

Playbook: "Choosing the goal for the next round of experiments". `stages.stage_order` assigns the findings to stages by priority.
Each stage with changes becomes a study with a single goal. Each study builds on the study of the previous stages:

- Each finding is either followed, or deferred with a reason (`FindingFollower`). If two changes contradict each other, the one with
  higher priority is applied (`StudyDraft`). If one finding is the cause of another, the changes for the effect wait until the cause
  is fixed (`advisor.engine.explain`).
- A finding may request a design of the playbook, such as a search for a warmup (`designs`). The requested design becomes the
  stage's study. The stage's other changes go into the design's `baseline`, the study that follows it.
- Changes that cost nothing are made at once, such as fixing hyperparameters that hardly matter in the first study. If the first
  study only narrows the space, it also shortens training. If more trials of the space would gain nothing, narrower ranges alone
  are no reason for a study.
- The notes of each stage's study contain the stage's advice. If a later stage has no study, its advice is deferred, unless the
  advice does not affect training.
- If only one setting was trained, a sweep of the learning rate comes right after pipeline faults. If the study searched only a
  learning rate and the best rate is known well enough, the next study searches another hyperparameter together with the
  learning rate (`designs.open_next`).
- Last, ranges are narrowed to the region in which the best setting probably lies (`ranges`), except for ends that a finding
  set. Learning-rate ranges may be widened for a new batch size. If a pipeline fault is critical, results prove
  nothing, so ranges stay unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import get_args

from advisor.computed.space import importance
from advisor.engine.rule import Rule
from advisor.model.change import Advise, Change, RepeatTrial
from advisor.model.finding import Finding, Goal, Verdict, sort_by_priority
from advisor.model.frozen import FrozenModel
from advisor.model.space import RangeSide
from advisor.model.spec import Sampler, StudySpec
from advisor.model.study import Study
from advisor.planning import new_scores, ranges, stages
from advisor.planning.base import initial_draft, round_study_name, validate_spec, with_training_lengths
from advisor.planning.closing import answering_open_questions, closing_study, stop_if_settled
from advisor.planning.designs import per_optimizer
from advisor.planning.designs.catalogue import STUDY_DESIGNS
from advisor.planning.designs.open_next import search_next_hyperparameter
from advisor.planning.designs.rate_sweep import is_first_single_setting, rate_is_too_high, rate_sweep_study
from advisor.planning.draft import Deferred, FindingFollower, StudyDraft
from advisor.planning.goals import comparison_goal, goal_after_manual_fix, goal_text, slug
from advisor.planning.ranges import with_narrower_ranges, with_range_for_batch_size

RELIABLE_STAGES: tuple[stages.Stage, ...] = (stages.STABILITY_STAGE, stages.SPACE_STAGE)
"""Stages whose studies may follow a sweep of the learning rate: their findings also hold at its best rate."""

WAITING_REASON = "comes first, so the effect of each change stays visible"
"""Reason why a finding waits until the first study has been run. The goal of the first study precedes this text."""
UNLIKELY_GAIN_REASON = "further search would hardly gain more than noise"
"""Reason why a finding is not followed if there is no next study."""
GOALS_NOT_AFFECTING_TRAINING: frozenset[Goal] = frozenset({"pipeline", "efficiency"})
"""Topics of findings whose advice does not change what the model learns, so that it can join any change."""


class Plan(FrozenModel):
    """The next studies in the order in which to run them, and the deferred findings."""

    specs: tuple[StudySpec, ...]
    deferred: tuple[Deferred, ...]
    studies_to_size: frozenset[str]
    """Names of the next studies that still have the analysed study's number of trials. Study designs set other numbers."""
    new_scores: bool = False
    """Whether scores of the next studies are not comparable with earlier scores, for example after a change of the validation
    data. If they are not, earlier trials cannot be used."""
    stop: str = ""
    """Reason to stop if another search would hardly find a better setting; empty if a study is planned."""


def file_names(specs: Sequence[StudySpec]) -> list[str]:
    """Return a file name for each study, such as `1-search-the-right-space.yaml`, numbered in order."""
    return [f"{i}-{slug(spec.goal.partition(':')[0])}.yaml" for i, spec in enumerate(specs, 1)]


def plan(study: Study, verdicts: Iterable[Verdict], rules: Sequence[Rule] = ()) -> Plan:
    """Return the next studies and the deferred findings. rules: the rules that produced the verdicts."""
    verdicts = tuple(verdicts)
    findings = sort_by_priority((f for v in verdicts for f in v.findings), importance.mean_importances(study))
    start = initial_draft(study)
    merger = PlanMerger(study, findings, verdicts, rules, StudyDraft(start, start))
    for number, stage in enumerate(stages.stage_order(study, findings)):
        if number == 1 and is_first_single_setting(study):
            merger.add_sweep()
        if merger.sweeps_learning_rate_first and (stage not in RELIABLE_STAGES or rate_is_too_high(study)):
            merger.defer_stage(stage)
        else:
            merger.add_stage(stage)
    merger.add_saving_study()
    merger.answer_open_questions()
    if not merger.specs and (closing := closing_study(study, verdicts, rules, merger.draft.current_spec)) is not None:
        merger.add_closing_study(closing)
    if not merger.specs:
        merger.add_saving_study(steps=True)
    unsized = frozenset(merger.specs[i].study for i in merger.drafted_indices)
    specs = tuple(with_training_lengths(study, spec) for spec in per_optimizer.divide_by_optimizer(merger.specs))
    if not merger.has_critical_pipeline_fault:
        parts = merger.draft.rule_by_part.keys()
        parts_to_keep = [parts | per_optimizer.usual_rate_range_parts(study, merger.specs, spec) for spec in specs]
        narrower = (with_narrower_ranges(study, s, keep) for s, keep in zip(specs, parts_to_keep, strict=True))
        specs = tuple(with_range_for_batch_size(study, spec) for spec in narrower)
    stop_reason = ""
    if len(specs) == 1:
        replacement, stop_reason = stop_if_settled(study, verdicts, rules, specs[0])
        specs = () if replacement is None else (replacement,)
    if stop_reason:
        merger.defer_dropped_findings()
    scores_changed = bool(specs) and new_scores.needs_new_scores(specs[0], findings)
    train_again = scores_changed and (not merger.drafted_indices or new_scores.score_changing_fixes(specs[0], findings))
    if train_again and specs[0].probe is None:
        specs, unsized = (merger.train_best_settings_instead(specs[0]),), frozenset()
    # If a finding waits for the first study, the reason includes the first study's goal.
    wait_reason = f"“{specs[0].goal.partition(':')[0]}” {WAITING_REASON}" if specs else UNLIKELY_GAIN_REASON
    deferred = [d.model_copy(update={"reason": wait_reason}) if d.reason == WAITING_REASON else d for d in merger.deferred]
    return Plan(specs=specs, deferred=tuple(deferred), studies_to_size=unsized, new_scores=scores_changed, stop=stop_reason)


@dataclass
class PlanMerger(FindingFollower):
    """Follows the findings stage by stage and collects the next studies."""

    specs: list[StudySpec] = field(default_factory=list)
    drafted_indices: list[int] = field(default_factory=list)
    """Indices (in `specs`) of the studies that were made from the draft. All other studies come from study designs."""
    stages_without_study: list[stages.StageEdits] = field(default_factory=list)
    """Edits of the stages that have no study yet, because they only save trials or steps, or only give advice."""
    early_advice: list[Advise] = field(default_factory=list)
    """Advice of earlier stages, which is added to the notes of the first study."""
    sweeps_learning_rate_first: bool = False
    """Whether the first study is a sweep of the learning rate, because only one setting was trained."""
    first_study_edits: tuple[stages.StageEdits, StudySpec] | None = None
    """The edits that led to the first study, and the draft before these edits."""

    @property
    def has_critical_pipeline_fault(self) -> bool:
        """Whether a pipeline fault is critical, so that results prove nothing."""
        return any(f.goal == "pipeline" and f.severity == "critical" for f in self.findings)

    def add_sweep(self) -> None:
        """If only one setting was trained, add a sweep of the learning rate."""
        spec = rate_sweep_study(self.study, self.draft.current_spec)
        if spec is not None:
            self.specs.append(_with_notes(self._with_round_fields(spec), _advice(self.stages_without_study)))
            self.stages_without_study, self.sweeps_learning_rate_first = [], True

    def add_closing_study(self, spec: StudySpec) -> None:
        """Add the closing study. If its trials are longer than the analysed trials, defer advice on the training length."""
        trains_longer = (spec.max_train_steps or 0) > (self.study.spec.max_train_steps or math.inf)
        deferred_edits = [e for e in self.stages_without_study if trains_longer and all(f.goal == "steps" for f in e.findings)]
        for finding in (f for edits in deferred_edits for f in edits.findings):
            self.defer(finding, WAITING_REASON)
        included = [e for e in self.stages_without_study if e not in deferred_edits]
        self.specs.append(_with_notes(spec, [*(r for e in included for r in e.field_change_reasons), *_advice(included)]))

    def defer_stage(self, stage: stages.Stage) -> None:
        """Defer the findings of the stage. Findings that are only advice become notes of the learning-rate sweep."""
        findings = [f for f in self.findings if f.goal in stage]
        advice_notes = [c for f in findings for c in f.changes if isinstance(c, Advise) and stages.recommends_only_advice(f)]
        self._place_notes(stages.StageEdits("", findings, notes=advice_notes))
        for finding in findings:
            if not stages.recommends_only_advice(finding):
                self.defer(finding, WAITING_REASON)

    def add_stage(self, stage: stages.Stage) -> None:
        """Apply the changes of the stage's findings, and add a study if the changes need a separate study."""
        edits = stages.StageEdits("", [f for f in self.findings if f.goal in stage])
        if stage is stages.REGULARISATION_STAGE and any(not isinstance(c, Advise) for f in edits.findings for c in f.changes):
            spec_before = self.draft.current_spec
            if not self.specs and (changes := self._widen_rate_range()):
                goal = goal_text(changes, spec_before, self.draft.current_spec)
                self._add_study(stages.StageEdits(goal, (), changes=changes))
        spec_before = self.draft.current_spec
        # Repeats of a trial come last, because they are planned only if no other change is made.
        repeats_trial = {id(f): any(isinstance(c, RepeatTrial) for c in f.changes) for f in edits.findings}
        for finding in sorted(edits.findings, key=lambda f: (repeats_trial[id(f)], self.cause_count(f))):
            self.follow(finding, edits, self.stages_without_study)
        if stage is stages.SPACE_STAGE and edits.request is None and self.draft.current_spec != spec_before and not self.specs:
            edits.changes += self._widen_rate_range()
        manual_fix = next((f for f in edits.findings if self.needs_manual_fix(f)), None)
        is_search = manual_fix is None and edits.request is None
        if is_search and self.draft.current_spec == spec_before:
            self._place_notes(edits)
            return
        edits.goal = self._goal_of(edits, spec_before, manual_fix)
        self._place_edits(edits, spec_before, is_search=is_search)

    def _goal_of(self, edits: stages.StageEdits, spec_before: StudySpec, manual_fix: Finding | None) -> str:
        """Return the stage's goal: a comparison if the stage only adds trials to compare values."""
        current_spec = self.draft.current_spec
        name = next((f.subject for f in edits.changing_findings), None) if edits.only_adds_trials else None
        parameter = current_spec.searched.get(name or "")
        if name is not None and parameter is not None and (parameter.role == "scientific" or not parameter.numeric):
            return comparison_goal(name, parameter)
        if manual_fix is not None and not edits.changes:
            return goal_after_manual_fix(str(manual_fix.action))
        return goal_text(edits.changes_by_priority, spec_before, current_spec)

    def _place_edits(self, edits: stages.StageEdits, before: StudySpec, *, is_search: bool) -> None:
        """Add a study for the stage, unless the stage's changes can join other studies or wait. before: the draft before
        the stage. is_search: True if the stage needs neither a study design nor a fix by hand."""
        after, start = self.draft.current_spec, self.draft.start
        only_cuts = edits.only_changes_ranges and after.searches_within(before)
        no_search = bool(self.study.searched) and not after.searched and not edits.only_repeats_trial
        no_search = no_search or (stages.says_to_stop_tuning(self.findings) and only_cuts)
        only_saves = is_search and (edits.only_saves_trials or edits.only_restores_schedule(self.study.spec) or no_search)
        shortens = edits.only_shortens_training(before)
        can_wait = shortens and is_search and not self.specs and all(f.severity == "note" for f in edits.changing_findings)
        # Shorter training costs nothing if the only planned study only narrows the search space.
        is_narrower = len(self.specs) == 1 and self.specs[0].searches_within(start) and self.specs[0].schedule == start.schedule
        is_sure = all(f.confidence >= stages.MIN_SURE_CONFIDENCE for f in edits.changing_findings)
        can_join = is_narrower and shortens and is_sure and edits.request is None and not self.has_critical_pipeline_fault
        if self.drafted_indices and self.specs[-1].probe is None and (only_saves or can_join):
            for i in self.drafted_indices:
                for change in edits.changes:
                    self.specs[i] = validate_spec(change.apply(self.specs[i]))
            self.specs[0] = _with_notes(self.specs[0], [*edits.field_change_reasons, *edits.notes])
        elif only_saves or can_wait:
            self.stages_without_study.append(edits)
        else:
            if not self.specs and is_search:
                self.first_study_edits = (edits, before)
            if any(e.only_restores_schedule(self.study.spec) for e in self.stages_without_study):
                edits.goal = f"Use the schedule of the study file and {edits.goal[0].lower()}{edits.goal[1:]}"
            self._add_study(edits)

    def _widen_rate_range(self) -> list[Change]:
        """If the best trials lie at an end of the learning-rate range, widen the range, and return a list with this change.
        Deferred findings about the end are then no longer deferred, even if they are unsure."""
        before = self.draft.current_spec
        change = None if self.has_critical_pipeline_fault else ranges.wider_rate_range(self.study, before)
        if change is None or not self.draft.apply("the planner", change):
            return []
        ends = {s for s in get_args(RangeSide) if getattr(change, s) != getattr(before.parameters[change.parameter], s)}
        end_findings = [f for f in self.findings if f.goal == "boundary" and f.subject == change.parameter and f.side in ends]
        self.deferred = [d for d in self.deferred if (d.rule, d.message) not in [(f.rule, f.message) for f in end_findings]]
        return [change]

    def answer_open_questions(self) -> None:
        """If the first study only adds trials, shortens trials or changes ranges, let it also answer open questions. If the
        first study then searches fewer hyperparameters, drop all later studies."""
        if self.first_study_edits is None:
            return
        edits, spec_before = self.first_study_edits
        if edits.only_repeats_trial:
            self._replace_repeats_by_search(edits, spec_before)
            return
        is_inside = self.specs[0].searches_within(spec_before)
        is_only_study = len(self.specs) == 1 and not self.has_critical_pipeline_fault
        next_search = search_next_hyperparameter(self.study, self.specs[0]) if is_only_study else None
        if next_search is not None and (edits.only_adds_trials or is_inside):
            rate = next(iter(next_search.searched))
            for finding in edits.changing_findings:
                self.defer(finding, f"the next study searches {rate} together with another hyperparameter")
            self.specs, self.drafted_indices = [next_search], []
            return
        spec = answering_open_questions(self.study, self.verdicts, self.rules, self.specs[0])
        searches_fewer = spec.searched.keys() < self.specs[0].searched.keys()
        tells_more = edits.only_adds_trials or edits.only_shortens_training(spec_before) or is_inside
        space_goals = (*stages.SPACE_STAGE, *stages.REGULARISATION_STAGE)
        moves_space = all(f.goal in space_goals or f.severity == "note" for f in edits.findings)
        is_changed = len(self.specs) == 1 and spec is not self.specs[0]
        if (searches_fewer and (tells_more or moves_space)) or (tells_more and is_changed):
            goal = spec.goal if edits.only_adds_trials else edits.goal
            self.specs, self.drafted_indices = [spec.model_copy(update={"goal": goal})], []

    def _replace_repeats_by_search(self, edits: stages.StageEdits, before: StudySpec) -> None:
        """Replace repeats of the best setting by the closing study, if the closing study is a further search or trains longer.
        Noise would guide an adaptive search around equally good settings."""
        last = closing_study(self.study, self.verdicts, self.rules, before) if len(self.specs) == 1 else None
        if last is None:
            return
        searches_fewer = bool(last.searched) and last.searched.keys() < self.study.searched.keys()
        trains_longer = bool(last.settings) and (last.max_train_steps or 0) > (before.max_train_steps or math.inf)
        guided_by_noise = any(map(stages.adopts_now, edits.findings))
        if searches_fewer or trains_longer or (last.sampler.kind == "adaptive" and not guided_by_noise):
            for finding in edits.findings:
                self.defer(finding, "the next study may find a better setting, which should be repeated instead")
            self.specs, self.drafted_indices = [_with_notes(last, self.early_advice)], []

    def defer_dropped_findings(self) -> None:
        """Defer the findings of a study that was dropped, because it would hardly find a better setting."""
        for finding in self.settled:
            if not stages.recommends_only_advice(finding):
                self.defer(finding, UNLIKELY_GAIN_REASON)

    def train_best_settings_instead(self, spec: StudySpec) -> StudySpec:
        """Return a study that trains the best settings again in place of `spec`, and defer the findings that led to `spec`."""
        new = new_scores.study_of_best_settings(self.study, spec, self.draft.start, self.findings)
        for finding in self.settled if new is not spec else ():
            if not stages.recommends_only_advice(finding) and not new_scores.score_changing_fixes(new, [finding]):
                self.defer(finding, WAITING_REASON)
        return new

    def add_saving_study(self, *, steps: bool = False) -> None:
        """Add a study for stages that only save trials, unless another study includes their changes or the new study would only
        repeat the best trial.

        steps: if True, also add a study for stages that only save steps."""
        start, spec, best = self.draft.start, self.draft.current_spec, self.study.ranked()[:1]
        goals = [e.goal for e in self.stages_without_study if e.changes and (steps or not e.only_shortens_training(start))]
        values = {n: p.value for n, p in spec.parameters.items() if p.role == "fixed"}
        if not goals or (not spec.searched and best and values.items() <= best[0].params.items()):
            return
        self._add_study(stages.StageEdits(goals[-1], ()))

    def _place_notes(self, edits: stages.StageEdits) -> None:
        if not self.specs:
            self.stages_without_study.append(edits)
            return
        for finding in edits.findings:
            notes = [c for c in finding.changes if isinstance(c, Advise) and c in edits.notes]
            if notes and finding.goal in GOALS_NOT_AFFECTING_TRAINING:
                self.specs[0] = _with_notes(self.specs[0], notes)
            elif notes:
                self.defer(finding, WAITING_REASON)

    def _add_study(self, edits: stages.StageEdits) -> None:
        request, draft_spec = edits.request, self.draft.current_spec
        result = STUDY_DESIGNS[request.plan](request, self.study, draft_spec) if request is not None else ()
        spec = result if isinstance(result, StudySpec) else draft_spec.model_copy(update={"goal": edits.goal})
        repeated = {n for n in draft_spec.notes if any(n in earlier.notes for earlier in self.specs)}
        spec = spec.model_copy(update={"notes": tuple(n for n in spec.notes if n not in repeated)})
        stage_edits = [*self.stages_without_study, edits]
        for finding in (f for stage in stage_edits for f in stage.findings) if self.specs else ():
            self.defer(finding, WAITING_REASON)
        if not self.specs:
            self.early_advice = _advice(self.stages_without_study)
        bare = self._with_round_fields(spec)
        self.specs.append(_with_notes(bare, [*edits.field_change_reasons, *_advice(stage_edits)]))
        self.stages_without_study = []
        if request is None:
            self.drafted_indices.append(len(self.specs) - 1)
            self.draft.current_spec = bare.model_copy(update={"notes": ()})

    def _with_round_fields(self, spec: StudySpec) -> StudySpec:
        start, last = self.draft.start, self.specs[-1] if self.specs else None
        number = start.round if last is None else last.round + 1
        update = {
            "study": round_study_name(self.draft.current_spec, number),
            "parent": start.parent if last is None else last.study,
            "round": number,
            # A probe must train each of its choices once, which random and adaptive samplers cannot guarantee.
            "sampler": Sampler(kind="halton" if spec.probe else spec.sampler.kind, seed=number),
            "baseline": self.draft.current_spec if spec.probe else None,
        }
        return validate_spec(spec.model_copy(update=update))


def _with_notes(spec: StudySpec, notes: Sequence[Advise]) -> StudySpec:
    for note in notes:
        spec = note.apply(spec)
    return spec


def _advice(edits_of_stages: Sequence[stages.StageEdits]) -> list[Advise]:
    return [note for edits in edits_of_stages for note in edits.notes]
