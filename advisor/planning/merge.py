"""Combines the changes of all findings into the next studies.

Playbook: "Choosing the goal for the next round of experiments". `stages.stage_order` assigns the findings to stages by priority.
Each stage with changes becomes a study with a single goal. Each study builds on the study of the previous stages:

- Each finding is either followed, or deferred with a reason (`follow`). If two changes contradict each other, the one with
  higher priority is applied (`draft`). If one finding is the cause of another, the changes for the effect wait until the cause
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

from collections.abc import Iterable, Sequence

from advisor.computed.space import importance
from advisor.engine.rule import Rule
from advisor.model.finding import Verdict, sort_by_priority
from advisor.model.frozen import FrozenModel
from advisor.model.spec import StudySpec
from advisor.model.study import Study
from advisor.planning import new_scores
from advisor.planning.base import base, with_training_lengths
from advisor.planning.closing import closing_study, stop_if_settled
from advisor.planning.designs import per_optimizer
from advisor.planning.designs.rate_sweep import is_first_single_setting, rate_is_too_high
from advisor.planning.draft import StudyDraft
from advisor.planning.follow import Deferred
from advisor.planning.goals import slug
from advisor.planning.merger import UNLIKELY_GAIN_REASON, WAITS, PlanMerger
from advisor.planning.ranges import narrowed, with_range_for_batch_size
from advisor.planning.stages import SPACE_STAGE, STABILITY_STAGE, Stage, stage_order

RELIABLE_STAGES: tuple[Stage, ...] = (STABILITY_STAGE, SPACE_STAGE)
"""Stages whose studies may follow a sweep of the learning rate, because their findings also hold at the best learning rate of
the sweep."""


class Plan(FrozenModel):
    """The next studies in the order in which to run them, and the deferred findings."""

    specs: tuple[StudySpec, ...]
    deferred: tuple[Deferred, ...]
    unsized: frozenset[str]
    """Names of the next studies that still have the analysed study's number of trials. The number of trials of all other next
    studies comes from a study design."""
    new_scores: bool = False
    """Whether scores of the next studies are not comparable with earlier scores, for example after a change of the validation
    data. If so, earlier trials cannot be used."""
    stop: str = ""
    """Reason to stop if findings ask for a next study but another search would hardly find a better setting. The reason is
    empty if a study is planned."""


def file_names(specs: Sequence[StudySpec]) -> list[str]:
    """Return a file name for each study, such as `1-search-the-right-space.yaml`, numbered in order."""
    return [f"{i}-{slug(spec.goal.partition(':')[0])}.yaml" for i, spec in enumerate(specs, 1)]


def plan(study: Study, verdicts: Iterable[Verdict], rules: Sequence[Rule] = ()) -> Plan:
    """rules: the rules that produced the verdicts; a rule states whether the design `exploit` needs its verdict."""
    verdicts = tuple(verdicts)
    findings = sort_by_priority((f for v in verdicts for f in v.findings), importance.mean_importances(study))
    start = base(study)
    merger = PlanMerger(study, findings, verdicts, rules, StudyDraft(start, start))
    for number, stage in enumerate(stage_order(study, findings)):
        if number == 1 and is_first_single_setting(study):
            merger.add_sweep()
        if merger.sweeps_learning_rate_first and (stage not in RELIABLE_STAGES or rate_is_too_high(study)):
            merger.defer_stage(stage)
        else:
            merger.add_stage(stage)
    merger.add_saving_study()
    merger.answer_open_questions()
    if not merger.specs and (last := closing_study(study, verdicts, rules, merger.draft.current_spec)) is not None:
        merger.add_closing_study(last)
    if not merger.specs:
        merger.add_saving_study(steps=True)
    unsized = frozenset(merger.specs[i].study for i in merger.drafted_indices)
    specs = tuple(with_training_lengths(study, spec) for spec in per_optimizer.divide_by_optimizer(merger.specs))
    if not merger.has_critical_pipeline_fault:
        owned, whole = merger.draft.rule_by_part.keys(), merger.specs
        specs = tuple(narrowed(study, s, owned | per_optimizer.usual_rate_range_parts(study, whole, s)) for s in specs)
        specs = tuple(with_range_for_batch_size(study, spec) for spec in specs)
    stop = ""
    if len(specs) == 1:
        instead, stop = stop_if_settled(study, verdicts, rules, specs[0])
        specs = () if instead is None else (instead,)
    if stop:
        merger.defer_dropped_findings()
    scores_changed = bool(specs) and new_scores.needs_new_scores(specs[0], findings)
    again = scores_changed and (not merger.drafted_indices or new_scores.score_changing_fixes(specs[0], findings))
    if again and specs[0].probe is None:
        specs, unsized = (merger.train_best_settings_instead(specs[0]),), frozenset()
    # If a finding waits for the first study, the reason includes that study's goal.
    waits = f"“{specs[0].goal.partition(':')[0]}” {WAITS}" if specs else UNLIKELY_GAIN_REASON
    deferred = [d.model_copy(update={"reason": waits}) if d.reason == WAITS else d for d in merger.deferred]
    return Plan(specs=specs, deferred=tuple(deferred), unsized=unsized, new_scores=scores_changed, stop=stop)
